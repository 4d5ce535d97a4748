/*
 * throttle-math.c - the arithmetic of the control loop that slows writers down
 *
 * Two feedback loops, multiplied. The slow one asks how fast a writer should be: dirty_ratelimit follows
 *
 *      balanced = task_rate * write bandwidth / rate at which all dirtied     (1/N for each of N writers)
 *
 * The fast one asks where the dirty level is, and scales that rate by the position ratio:
 *
 *      2.0 |*****.                       task_rate = dirty_ratelimit * pos
 *          |      `*.                    pause     = units dirtied / task_rate - time already spent
 *      1.0 |         `-.*****._
 *          |                   `*.
 *        0 +-----+--------+-------+----> dirty
 *            free run  set point  hard limit
 *
 * The easy thing to get wrong is the unit: dirtied, written and what a task owes must be the same bytes. Where
 * they are not (a folio charged here, its dirty block there), balanced is off by their ratio, only the position
 * is left to hold the level, and it settles just below the hard limit.
 *
 * Invariants: pause <= THROTTLE_PAUSE_MAX_MS (given pause_max()); dirty_ratelimit and avg_bw are at least 1.
 * Locking:    none; the caller's.
 * Kernel:     mm/page-writeback.c, lib/flex_proportions.c, v6.17. Differs: the limit is bytes, never a share of
 *             memory; no cgroups, no strict limit; a total that went back counts as no progress; a device's
 *             threshold never exceeds the whole limit; chunks are rounded by division.
 */
#include "throttle-math.h"

#define LIMIT_MAX       UINT32_MAX      /* units: 16 TiB */

/* A device that has just gone idle makes positions so large that their products need more than 64 bits. */
static uint64_t scale(uint64_t x, uint64_t by, uint64_t over)
{
	return (uint64_t)((unsigned __int128)x * by / over);
}

/* --- Limits ----------------------------------------------------------------------------------------------- */

struct dirty_limits dirty_limits_from_units(uint64_t thresh, uint64_t bg)
{
	struct dirty_limits l = { min_u64(thresh, LIMIT_MAX), bg };

	if (l.bg >= l.thresh)
		l.bg = l.thresh / 2;
	return l;
}

struct dirty_limits dirty_limits_from_bytes(uint64_t dirty_bytes, uint64_t bg_bytes)
{
	return dirty_limits_from_units(div_round_up(dirty_bytes, THROTTLE_UNIT_BYTES),
				       div_round_up(bg_bytes, THROTTLE_UNIT_BYTES));
}

uint64_t dirty_freerun(struct dirty_limits l)
{
	return (l.thresh + l.bg) / 2;
}

uint64_t dirty_hard_limit(struct dirty_limits l, uint64_t tracked)
{
	return max_u64(l.thresh, tracked);
}

uint64_t dirty_setpoint(struct dirty_limits l, uint64_t hard)
{
	return (dirty_freerun(l) + hard) / 2;
}

uint64_t dirty_limit_step(uint64_t limit, uint64_t thresh, uint64_t dirty)
{
	if (limit < thresh)
		return thresh;          /* more room is there at once */
	uint64_t target = max_u64(thresh, dirty);
	return limit > target ? limit - ((limit - target) >> 5) : limit;
}

uint64_t poll_interval(uint64_t dirty, uint64_t thresh)
{
	return thresh > dirty ? UINT64_C(1) << (log2_floor(thresh - dirty) / 2) : 1;
}

/* --- Shares ----------------------------------------------------------------------------------------------- */

void fprop_domain_init(struct fprop_domain *d)
{
	*d = (struct fprop_domain){ .events = 1 };      /* 1, so that no fraction divides by 0 */
}

void fprop_local_init(struct fprop_local *l, const struct fprop_domain *d)
{
	*l = (struct fprop_local){ .period = d->period };
}

static uint64_t halve(uint64_t events, uint64_t periods)
{
	return periods < 64 ? events >> periods : 0;
}

void fprop_age(struct fprop_local *l, const struct fprop_domain *d)
{
	l->events = halve(l->events, d->period - l->period);
	l->period = d->period;
}

void fprop_add(struct fprop_domain *d, struct fprop_local *l, uint64_t nr, uint64_t now)
{
	fprop_age(l, d);
	l->events += nr;
	d->events += nr;
	if (!d->timer_ms)
		d->timer_ms = max_u64(now + FPROP_PERIOD_MS, 1);
}

bool fprop_new_period(struct fprop_domain *d, uint64_t periods)
{
	if (d->events <= 1)
		return false;
	d->events = halve(d->events, periods);
	d->period += periods;
	return true;
}

void fprop_timer(struct fprop_domain *d, uint64_t now)
{
	if (!d->timer_ms || now < d->timer_ms)
		return;
	uint64_t missed = (now - d->timer_ms) / FPROP_PERIOD_MS;

	if (fprop_new_period(d, missed + 1))
		d->timer_ms += (missed + 1) * FPROP_PERIOD_MS;
	else
		d->timer_ms = 0;
}

/* Halving rounds each count down by itself, so the parts can come to more than the whole. */
struct fraction fprop_fraction(const struct fprop_domain *d, struct fprop_local *l)
{
	fprop_age(l, d);
	struct fraction f = { .num = l->events, .den = d->events };

	if (f.den <= f.num)
		f.den = max_u64(f.num, 1);
	return f;
}

uint64_t wb_share(uint64_t limit, struct fraction f)
{
	/* Completions have no bound if nobody runs the timer; 32 bits of them are as good. */
	unsigned excess = f.den >> 32 ? log2_floor(f.den) - 31 : 0;

	return limit * (f.num >> excess) / (f.den >> excess);
}

uint64_t wb_share_bg(uint64_t wb_thresh, struct dirty_limits l)
{
	return l.thresh ? wb_thresh * l.bg / l.thresh : 0;
}

/* --- Position --------------------------------------------------------------------------------------------- */

uint64_t pos_poly(uint64_t setpoint, uint64_t dirty, uint64_t limit)
{
	int64_t x = ((int64_t)setpoint - (int64_t)dirty) * POS_ONE / (int64_t)((limit - setpoint) | 1);

	/* Beyond one the cube is cut off anyway; cutting here keeps it small. */
	if (x >= (int64_t)POS_ONE)
		return 2 * POS_ONE;
	if (x <= -(int64_t)POS_ONE)
		return 0;
	/* Both shifts round down, also below zero. */
	return (uint64_t)((int64_t)POS_ONE + (((x * x) >> POS_SHIFT) * x >> POS_SHIFT));
}

/*
 * The whole domain's curve, bent by a straight line for the device: through 1.0 at the device's own set point,
 * down to 0 one span further. One device alone gets a span of eight seconds' worth of writing; one of many
 * about its own threshold, so that a share that doubles moves it by 100 %.
 */
uint64_t pos_ratio(const struct pos_input *in)
{
	if (in->dirty >= in->hard)
		return 0;

	const uint64_t thresh = in->limits.thresh;
	const uint64_t setpoint = dirty_setpoint(in->limits, in->hard);
	uint64_t pos = pos_poly(setpoint, in->dirty, in->hard);

	/* A device that was idle has no share yet, and gets a part of the room that is left. */
	uint64_t wb_thresh = max_u64(in->wb_thresh, (in->hard - in->dirty) / 8);
	wb_thresh = min_u64(wb_thresh, thresh);

	uint64_t part = (wb_thresh << 16) / (thresh | 1);
	uint64_t wb_setpoint = setpoint * part >> 16;
	uint64_t span = (thresh - wb_thresh + 8 * in->avg_bw) * part >> 16;
	uint64_t zero_at = wb_setpoint + span;

	if (in->wb_dirty < zero_at - span / 4)
		pos = pos * (zero_at - in->wb_dirty) / (span | 1);
	else
		pos /= 4;       /* the line alone never stops a writer */

	/* A fast device must not run out of work while slow ones fill the limit. */
	uint64_t reserve = wb_thresh / 2;
	if (in->wb_dirty < reserve)
		pos = in->wb_dirty > reserve / 8 ? scale(pos, reserve, in->wb_dirty) : pos * 8;
	return pos;
}

/* --- Rates ------------------------------------------------------------------------------------------------ */

void wb_rate_init(struct wb_rate *r, uint64_t written_total, uint64_t dirtied_total, uint64_t now)
{
	*r = (struct wb_rate){
		.write_bw = BANDWIDTH_INITIAL, .avg_bw = BANDWIDTH_INITIAL,
		.dirty_ratelimit = BANDWIDTH_INITIAL, .balanced_ratelimit = BANDWIDTH_INITIAL,
	};
	wb_rate_restart(r, written_total, dirtied_total, now);
}

void wb_rate_restart(struct wb_rate *r, uint64_t written_total, uint64_t dirtied_total, uint64_t now)
{
	r->written_stamp = written_total;
	r->dirtied_stamp = dirtied_total;
	r->stamp_ms = now;
}

/* What lies behind: @now may have been read before another thread moved the stamp. */
static uint64_t since(uint64_t now, uint64_t then)
{
	return now > then ? now - then : 0;
}

static uint64_t elapsed_ms(const struct wb_rate *r, uint64_t now)
{
	return max_u64(since(now, r->stamp_ms), 1);
}

bool wb_rate_is_due(const struct wb_rate *r, uint64_t now)
{
	return since(now, r->stamp_ms) > BANDWIDTH_INTERVAL_MS;
}

bool wb_rate_is_stale(const struct wb_rate *r, uint64_t now)
{
	return since(now, r->stamp_ms) > BANDWIDTH_IDLE_MS;
}

void wb_rate_update_bandwidth(struct wb_rate *r, uint64_t written_total, uint64_t dirtied_total, uint64_t now)
{
	const uint64_t period = UINT64_C(1) << BANDWIDTH_PERIOD_SHIFT;
	const uint64_t elapsed = elapsed_ms(r, now);
	const uint64_t work = since(written_total, r->written_stamp) * THROTTLE_HZ;
	const uint64_t old = r->write_bw;

	if (elapsed > period) {
		r->write_bw = work / elapsed;
		r->avg_bw = r->write_bw;
	} else {
		r->write_bw = (work + old * (period - elapsed)) >> BANDWIDTH_PERIOD_SHIFT;
		/* The average follows only where the estimate keeps moving away from it. */
		if (r->avg_bw > old && old >= r->write_bw)
			r->avg_bw -= (r->avg_bw - old) >> 3;
		else if (r->avg_bw < old && old <= r->write_bw)
			r->avg_bw += (old - r->avg_bw) >> 3;
	}
	r->avg_bw = max_u64(r->avg_bw, 1);
	wb_rate_restart(r, written_total, dirtied_total, now);
}

uint64_t wb_task_rate(const struct wb_rate *r, uint64_t pos)
{
	return scale(r->dirty_ratelimit, pos, UINT64_C(1) << POS_SHIFT);
}

void wb_rate_update_ratelimit(struct wb_rate *r, uint64_t pos, uint64_t dirtied_total, uint64_t dirty,
			      uint64_t setpoint, uint64_t now)
{
	const uint64_t dirty_rate = since(dirtied_total, r->dirtied_stamp) * THROTTLE_HZ / elapsed_ms(r, now);
	const uint64_t task_rate = wb_task_rate(r, pos) + 1;
	const uint64_t balanced = min_u64(scale(task_rate, r->avg_bw, dirty_rate | 1), r->avg_bw);
	uint64_t step = 0;

	/*
	 * Move only where the level and the rates ask for the same direction, and no further than the least of
	 * them asks.
	 */
	if (dirty < setpoint) {
		uint64_t least = min_u64(min_u64(r->balanced_ratelimit, balanced), task_rate);
		if (r->dirty_ratelimit < least)
			step = least - r->dirty_ratelimit;
	} else {
		uint64_t most = max_u64(max_u64(r->balanced_ratelimit, balanced), task_rate);
		if (r->dirty_ratelimit > most)
			step = r->dirty_ratelimit - most;
	}
	/* The closer, the slower: noise must not move what is right already. */
	uint64_t shift = r->dirty_ratelimit / (2 * step + 1);
	step = shift < 64 ? div_round_up(step >> shift, 8) : 0;

	if (r->dirty_ratelimit < balanced)
		r->dirty_ratelimit += step;
	else
		r->dirty_ratelimit -= step;
	r->dirty_ratelimit = max_u64(r->dirty_ratelimit, 1);
	r->balanced_ratelimit = balanced;
}

/* --- Pauses ----------------------------------------------------------------------------------------------- */

/* Here a second is 1024 ms: what divides by it is a guess, and shall be a shift. */
#define SECOND_SHIFT    10

/* An eighth of the time the device needs for what it has. */
uint64_t pause_max(uint64_t avg_bw, uint64_t wb_dirty)
{
	uint64_t ms = wb_dirty / (1 + (avg_bw >> (SECOND_SHIFT - 3))) + 1;

	return min_u64(ms, THROTTLE_PAUSE_MAX_MS);
}

struct pause_targets pause_targets(uint64_t avg_bw, uint64_t ratelimit, uint64_t max_ms, uint64_t task_rate)
{
	const unsigned bw_log = log2_floor(avg_bw | 1), rate_log = log2_floor(ratelimit | 1);
	uint64_t ms = THROTTLE_HZ / 100;

	/* The more writers (bandwidth over rate), the longer each sleeps: about 10 ms for every doubling. */
	if (bw_log > rate_log)
		ms += (bw_log - rate_log) * (10 * THROTTLE_HZ) >> SECOND_SHIFT;
	ms = min_u64(ms, 1 + max_ms / 2);

	uint64_t units = ratelimit * ms >> SECOND_SHIFT;
	if (units < THROTTLE_POLL_MIN) {
		/* Too few to be worth looking: sleep longer. */
		ms = max_ms;
		units = ratelimit * ms >> SECOND_SHIFT;
		if (units > THROTTLE_POLL_MIN) {
			units = THROTTLE_POLL_MIN;
			ms = THROTTLE_HZ * THROTTLE_POLL_MIN / ratelimit;
		}
	}
	if (THROTTLE_HZ * units / (task_rate + 1) > max_ms) {
		ms = max_ms;
		units = task_rate * ms >> SECOND_SHIFT;
	}
	return (struct pause_targets){
		.max_ms = max_ms,
		.min_ms = units >= THROTTLE_POLL_MIN ? 1 + ms / 2 : ms,
		.next_units = units,
	};
}

void throttle_task_init(struct throttle_task *t)
{
	*t = (struct throttle_task){ .nr_dirtied_pause = THROTTLE_POLL_MIN };
}

uint64_t throttle_entry_limit(const struct throttle_task *t, bool dirty_exceeded)
{
	return dirty_exceeded ? min_u64(t->nr_dirtied_pause, THROTTLE_EXCEEDED_POLL) : t->nr_dirtied_pause;
}

void throttle_free_run(struct throttle_task *t, uint64_t poll, uint64_t now)
{
	*t = (struct throttle_task){ .nr_dirtied_pause = poll, .paused_when_ms = now };
}

/* Too little is owed for a sleep: carry it on. */
static void carry(struct throttle_task *t, uint64_t pages_dirtied, uint64_t period, int64_t pause, uint64_t now)
{
	if (pause < -(int64_t)THROTTLE_HZ) {
		t->paused_when_ms = now;        /* it thought for long; that is no credit */
		t->nr_dirtied = 0;
	} else if (period) {
		t->paused_when_ms += period;
		t->nr_dirtied = 0;
	} else if (t->nr_dirtied_pause <= pages_dirtied) {
		t->nr_dirtied_pause += pages_dirtied;   /* it looks too often */
	}
}

enum throttle_verdict throttle_decide(struct throttle_task *t, uint64_t pages_dirtied, uint64_t task_rate,
				      const struct pause_targets *targets, bool async, uint64_t now,
				      uint64_t *pause_ms)
{
	uint64_t pause = targets->max_ms;

	if (task_rate) {
		uint64_t period = THROTTLE_HZ * pages_dirtied / task_rate;
		int64_t due = (int64_t)period;

		if (t->paused_when_ms)
			due -= (int64_t)(now - t->paused_when_ms);      /* time spent elsewhere is paid */
		if (due < (int64_t)targets->min_ms) {
			carry(t, pages_dirtied, period, due, now);
			return THROTTLE_RETURN;
		}
		pause = (uint64_t)due;
		if (pause > targets->max_ms) {
			/*
			 * What one sleep cannot pay stays owed, as time paid for in advance; more than one
			 * sleep is forgiven.
			 */
			now += min_u64(pause - targets->max_ms, targets->max_ms);
			pause = targets->max_ms;
		}
	}
	if (async)
		return THROTTLE_AGAIN;
	*t = (struct throttle_task){
		.nr_dirtied_pause = targets->next_units,
		.paused_when_ms = now + pause,
	};
	*pause_ms = pause;
	return THROTTLE_SLEEP;
}

/* --- Chunks ----------------------------------------------------------------------------------------------- */

uint64_t writeback_chunk(uint64_t avg_bw, uint64_t dirty_limit, uint64_t left, uint64_t min_chunk)
{
	uint64_t units = min_u64(min_u64(avg_bw / 2, dirty_limit / 8), left);

	return (units + min_chunk) / min_chunk * min_chunk;
}
