/*
 * throttle.c - bytes -> numbers for the throttle's arithmetic, against the formulas in 128 bits
 *
 * The reference computes each formula of the control loop step by step, in 128 bits, where nothing can overflow; the
 * library works in 64. Numbers come in any size, with limits up to 1 TiB and rates up to 64 GiB/s: far beyond, the
 * position of a device that does nothing, times a rate, passes 2^64. Beside the equality there are the promises that
 * do not depend on how a formula is computed: bounds, and which way a result moves with its input.
 *
 * The first byte of each round says which formulas get the numbers that follow; the state of one device and of one
 * writer goes on from round to round, as it does in the library.
 */
#include <string.h>
#include "fuzz.h"
#include "throttle-math.h"

typedef __int128 wide;

enum { ROUNDS = 500, LIMIT_BITS = 28, RATE_BITS = 24, TOTAL_BITS = 54 };

static wide min(wide a, wide b) { return a < b ? a : b; }
static wide max(wide a, wide b) { return a > b ? a : b; }
static wide div_up(wide a, wide b) { return (a + b - 1) / b; }

static unsigned lg(wide n)
{
	unsigned bits = 0;

	while (n >>= 1)
		bits++;
	return bits;
}

/* a / 2^shift, rounded down also where it is negative. */
static wide shift_down(wide a, unsigned shift)
{
	wide d = (wide)1 << shift;

	return a >= 0 ? a / d : -((-a + d - 1) / d);
}

#define SAME(got, want) do {									\
	wide got_ = (wide)(got), want_ = (wide)(want);						\
	FUZZ_CHECK(got_ == want_, "is %lld, not %lld", (long long)got_, (long long)want_);	\
} while (0)

/* --- limits ----------------------------------------------------------------------------------------------- */

static struct dirty_limits limits;
static uint64_t tracked;

static void check_limits(struct fuzz_in *in)
{
	uint64_t thresh = fuzz_any_size(in, 64), bg = fuzz_any_size(in, 64), dirty = fuzz_any_size(in, LIMIT_BITS);
	wide units = min(div_up(thresh, 4096), UINT32_MAX), bg_units = div_up(bg, 4096), next, room, poll;
	struct dirty_limits l = dirty_limits_from_bytes(thresh, bg);

	SAME(l.thresh, units);
	SAME(l.bg, bg_units >= units ? units / 2 : bg_units);
	FUZZ_CHECK(l.bg < l.thresh || (!l.bg && !l.thresh), "the background limit is not below the limit");
	SAME(dirty_freerun(l), ((wide)l.thresh + l.bg) / 2);
	SAME(dirty_hard_limit(l, tracked), max(l.thresh, tracked));
	SAME(dirty_setpoint(l, dirty_hard_limit(l, tracked)), ((wide)dirty_freerun(l) + max(l.thresh, tracked)) / 2);
	FUZZ_CHECK(dirty_freerun(l) <= dirty_setpoint(l, l.thresh), "free run ends above the set point");
	FUZZ_CHECK(dirty_setpoint(l, l.thresh) <= l.thresh, "the set point is above the limit");

	next = tracked;
	if (next < l.thresh)
		next = l.thresh;
	else if (next > max(l.thresh, dirty))
		next -= (next - max(l.thresh, dirty)) / 32;
	SAME(dirty_limit_step(tracked, l.thresh, dirty), next);
	FUZZ_CHECK(next >= l.thresh, "the tracked limit is below the limit");

	room = (wide)l.thresh - dirty;
	poll = room > 0 ? (wide)1 << lg(room) / 2 : 1;
	SAME(poll_interval(dirty, l.thresh), poll);
	FUZZ_CHECK(poll == 1 || poll * poll <= room, "a free runner may dirty more than there is room");
	if (next >> LIMIT_BITS == 0) {
		tracked = (uint64_t)next;
		limits = l;
	}
}

/* --- shares ----------------------------------------------------------------------------------------------- */

static struct fprop_domain domain;
static struct fprop_local locals[3];
static uint64_t share_now;

/* What the domain and its devices should count; the library ages a device when it is touched, this at once. */
static struct { wide all, one[3], periods, timer; } shares;

static void pass_periods(wide n)
{
	shares.all = n < 64 ? shares.all >> n : 0;
	for (unsigned i = 0; i < 3; i++)
		shares.one[i] = n < 64 ? shares.one[i] >> n : 0;
	shares.periods += n;
}

static void check_shares(struct fuzz_in *in)
{
	uint8_t how = fuzz_byte(in);
	unsigned which = how % 3;
	uint64_t nr = fuzz_any_size(in, 40), limit = fuzz_any_size(in, LIMIT_BITS), part;
	struct fraction f;
	wide num, den;

	share_now += fuzz_any_size(in, 20);
	if (shares.timer && share_now >= shares.timer) {
		wide n = (share_now - shares.timer) / FPROP_PERIOD_MS + 1;

		if (shares.all > 1) {
			pass_periods(n);
			shares.timer += n * FPROP_PERIOD_MS;
		} else {
			shares.timer = 0;
		}
	}
	fprop_timer(&domain, share_now);
	SAME(domain.timer_ms, shares.timer);
	if (shares.all >> TOTAL_BITS == 0) {
		fprop_add(&domain, &locals[which], nr, share_now);
		shares.one[which] += nr;
		shares.all += nr;
		if (!shares.timer)
			shares.timer = share_now + FPROP_PERIOD_MS;
	}
	SAME(domain.timer_ms, shares.timer);
	SAME(domain.events, shares.all);
	SAME(domain.period, shares.periods);

	which = how / 4 % 3;
	num = shares.one[which];
	den = shares.all > num ? shares.all : max(num, 1);
	f = fprop_fraction(&domain, &locals[which]);
	SAME(f.num, num);
	SAME(f.den, den);

	/* exact below 2^32 completions; above, no more than the weight of a bit that was shifted out */
	part = wb_share(limit, f);
	if (den >> 32 == 0) {
		SAME(part, (wide)limit * num / den);
	} else {
		FUZZ_CHECK(part * den <= (wide)limit * (num + (den >> 30)), "more than its share");
		FUZZ_CHECK((part + 2) * den >= (wide)limit * (num - (den >> 30)), "less than its share");
	}
	FUZZ_CHECK(part <= limit, "a share of %llu is more than all", (unsigned long long)limit);
	SAME(wb_share_bg(part % (limits.thresh + 1), limits),
	     limits.thresh ? (wide)(part % (limits.thresh + 1)) * limits.bg / limits.thresh : 0);
}

/* --- position --------------------------------------------------------------------------------------------- */

static wide poly(wide setpoint, wide dirty, wide limit)
{
	wide x = (setpoint - dirty) * 1024 / ((limit - setpoint) | 1), r = shift_down(x * x, 10);

	return max(0, min(2048, shift_down(r * x, 10) + 1024));
}

static wide position(const struct pos_input *in)
{
	wide thresh = in->limits.thresh, setpoint = (((wide)thresh + in->limits.bg) / 2 + in->hard) / 2;
	wide pos = poly(setpoint, in->dirty, in->hard), wt, x, wb_setpoint, span, zero_at;

	if (in->dirty >= in->hard)
		return 0;
	wt = min(in->wb_thresh, thresh);
	wt = min(max(wt, ((wide)in->hard - in->dirty) / 8), thresh);
	x = (wt << 16) / (thresh | 1);
	wb_setpoint = setpoint * x >> 16;
	span = (thresh - wt + 8 * (wide)in->avg_bw) * x >> 16;
	zero_at = wb_setpoint + span;
	if (in->wb_dirty < zero_at - span / 4)
		pos = pos * (zero_at - in->wb_dirty) / ((zero_at - wb_setpoint) | 1);
	else
		pos /= 4;
	if (in->wb_dirty < wt / 2)
		pos = in->wb_dirty > wt / 2 / 8 ? pos * (wt / 2) / in->wb_dirty : pos * 8;
	return pos;
}

static struct wb_rate rate;
static uint64_t rate_now, written, dirtied;
static struct pos_input place;          /* of the last look, for the rates and pauses that follow */
static uint64_t pos;

/* Looks at the place with the rate as it is now, as every look of the library does. */
static void look(void)
{
	place.avg_bw = rate.avg_bw;
	pos = pos_ratio(&place);
	SAME(pos, position(&place));
}

static void check_position(struct fuzz_in *in)
{
	wide setpoint, above;

	place.limits = limits;
	place.hard = dirty_hard_limit(limits, tracked);
	place.dirty = fuzz_any_size(in, LIMIT_BITS);
	place.wb_thresh = fuzz_any_size(in, LIMIT_BITS) % (limits.thresh + 1);
	place.wb_dirty = fuzz_any_size(in, LIMIT_BITS);
	if (place.wb_dirty > place.dirty)
		place.wb_dirty = place.dirty;
	setpoint = dirty_setpoint(limits, place.hard);
	look();
	SAME(pos_poly((uint64_t)setpoint, place.dirty, place.hard), poly(setpoint, place.dirty, place.hard));

	above = (wide)place.dirty + fuzz_any_size(in, LIMIT_BITS);
	FUZZ_CHECK(pos_poly((uint64_t)setpoint, (uint64_t)above, place.hard) <=
		   pos_poly((uint64_t)setpoint, place.dirty, place.hard), "the curve rises with the level");
	FUZZ_CHECK(pos <= 8 * 2048 * (1 + setpoint), "a position of %llu", (unsigned long long)pos);
	FUZZ_CHECK(place.dirty < place.hard || !pos, "writers go on at the hard limit");
}

/* --- rates ------------------------------------------------------------------------------------------------ */

static wide clamp(wide a) { return a > 0 ? a : 0; }

static void check_ratelimit(uint64_t total)
{
	struct wb_rate was = rate;
	wide elapsed = max(1, (wide)rate_now - was.stamp_ms);
	wide dirty_rate = clamp((wide)total - was.dirtied_stamp) * 1000 / elapsed;
	wide task = ((wide)was.dirty_ratelimit * pos >> 10) + 1;
	wide balanced = min(task * was.avg_bw / (dirty_rate | 1), was.avg_bw);
	wide setpoint = dirty_setpoint(place.limits, place.hard), x, diff = 0, shift, want = was.dirty_ratelimit;

	if (place.dirty < setpoint) {
		x = min(min(was.balanced_ratelimit, balanced), task);
		diff = clamp(x - want);
	} else {
		x = max(max(was.balanced_ratelimit, balanced), task);
		diff = clamp(want - x);
	}
	shift = want / (2 * diff + 1);
	diff = shift < 64 ? div_up(diff >> shift, 8) : 0;
	want = max(1, want < balanced ? want + diff : want - diff);
	SAME(wb_task_rate(&rate, pos) + 1, task);
	wb_rate_update_ratelimit(&rate, pos, total, place.dirty, (uint64_t)setpoint, rate_now);
	SAME(rate.dirty_ratelimit, want);
	SAME(rate.balanced_ratelimit, balanced);
	FUZZ_CHECK(rate.dirty_ratelimit >= 1, "nobody may ever dirty again");
	FUZZ_CHECK(rate.balanced_ratelimit <= was.avg_bw, "one writer gets more than the device can do");
	was.dirty_ratelimit = rate.dirty_ratelimit;
	was.balanced_ratelimit = rate.balanced_ratelimit;
	FUZZ_CHECK(memcmp(&was, &rate, sizeof(was)) == 0, "more than the rate limit has changed");
}

static void check_bandwidth(uint64_t total, uint64_t dirtied_total)
{
	struct wb_rate was = rate;
	wide elapsed = max(1, (wide)rate_now - was.stamp_ms), work = clamp((wide)total - was.written_stamp) * 1000;
	wide avg = was.avg_bw, bw = elapsed > 4096 ? work / elapsed : (work + was.write_bw * (4096 - elapsed)) / 4096;

	if (elapsed > 4096)
		avg = bw;
	else if (avg > was.write_bw && was.write_bw >= bw)
		avg -= (avg - was.write_bw) / 8;
	else if (avg < was.write_bw && was.write_bw <= bw)
		avg += (was.write_bw - avg) / 8;
	wb_rate_update_bandwidth(&rate, total, dirtied_total, rate_now);
	SAME(rate.write_bw, bw);
	SAME(rate.avg_bw, max(avg, 1));
	SAME(rate.stamp_ms, rate_now);
	SAME(rate.written_stamp, total);
	SAME(rate.dirtied_stamp, dirtied_total);
	SAME(rate.dirty_ratelimit, was.dirty_ratelimit);
}

static void check_rates(struct fuzz_in *in)
{
	uint8_t how = fuzz_byte(in);
	uint64_t ahead = fuzz_any_size(in, 24), most;

	rate_now += ahead;
	if (how & 1 && rate_now > 300)          /* another thread has moved the stamp since @now was read */
		rate_now -= 300;
	FUZZ_EQ(wb_rate_is_due(&rate, rate_now), (wide)rate_now - rate.stamp_ms > 200);
	FUZZ_EQ(wb_rate_is_stale(&rate, rate_now), (wide)rate_now - rate.stamp_ms > 1000);
	/* the fastest device there is */
	most = (UINT64_C(1) << RATE_BITS) - 1;
	most = most * (rate_now > rate.stamp_ms ? min_u64(rate_now - rate.stamp_ms, 1 << 24) : 1) / 1000;
	written += min_u64(fuzz_any_size(in, TOTAL_BITS), most);
	dirtied += fuzz_any_size(in, 50);
	if (how & 2)
		written -= min_u64(written, 100);       /* totals may be read out of order */
	if (how & 4)
		dirtied -= min_u64(dirtied, 100);
	if (how & 8) {
		look();
		check_ratelimit(dirtied);
	}
	check_bandwidth(written, dirtied);
	if (how & 16) {
		rate_now += ahead;
		wb_rate_restart(&rate, written, dirtied, rate_now);
		SAME(rate.stamp_ms, rate_now);
	}
}

/* --- pauses ----------------------------------------------------------------------------------------------- */

static struct throttle_task task;

/* paused_when, nr_dirtied and nr_dirtied_pause after @t looked; as the loop's steps 11 to 15 say. */
static enum throttle_verdict decide(struct throttle_task *t, wide pages, wide task_rate,
				    const struct pause_targets *to, bool async, wide now, wide *pause)
{
	wide period = to->max_ms;

	*pause = to->max_ms;
	if (task_rate) {
		period = 1000 * pages / task_rate;
		*pause = t->paused_when_ms ? period - (now - (wide)t->paused_when_ms) : period;
		if (*pause < to->min_ms) {
			if (*pause < -1000) {
				t->paused_when_ms = (uint64_t)now;
				t->nr_dirtied = 0;
			} else if (period) {
				t->paused_when_ms += (uint64_t)period;
				t->nr_dirtied = 0;
			} else if (t->nr_dirtied_pause <= pages) {
				t->nr_dirtied_pause += (uint64_t)pages;
			}
			return THROTTLE_RETURN;
		}
		if (*pause > to->max_ms) {
			now += min(*pause - to->max_ms, to->max_ms);
			*pause = to->max_ms;
		}
	}
	if (async)
		return THROTTLE_AGAIN;
	t->paused_when_ms = (uint64_t)(now + *pause);
	t->nr_dirtied = 0;
	t->nr_dirtied_pause = to->next_units;
	return THROTTLE_SLEEP;
}

static void check_targets(const struct pause_targets *got, wide maxp, wide task_rate)
{
	wide bw = rate.avg_bw, limit = rate.dirty_ratelimit, t = 10, units;

	if (lg(bw) > lg(limit))
		t += (lg(bw) - lg(limit)) * 10000 / 1024;
	t = min(t, 1 + maxp / 2);
	units = limit * t / 1024;
	if (units < 32) {
		t = maxp;
		units = limit * t / 1024;
		if (units > 32) {
			units = 32;
			t = 1000 * 32 / limit;
		}
	}
	if (1000 * units / (task_rate + 1) > maxp) {
		t = maxp;
		units = task_rate * t / 1024;
	}
	SAME(got->next_units, units);
	SAME(got->min_ms, units >= 32 ? 1 + t / 2 : t);
	SAME(got->max_ms, maxp);
}

static void check_pauses(struct fuzz_in *in)
{
	uint8_t how = fuzz_byte(in);
	uint64_t now = task.paused_when_ms + fuzz_any_size(in, 20), pages = fuzz_any_size(in, LIMIT_BITS);
	uint64_t task_rate, got_pause = 0;
	wide maxp = min((wide)place.wb_dirty / (1 + (wide)rate.avg_bw / 128) + 1, 200), pause;
	struct pause_targets to;
	struct throttle_task want, sync;
	enum throttle_verdict verdict;

	look();
	task_rate = how & 1 ? wb_task_rate(&rate, pos) : fuzz_any_size(in, RATE_BITS);
	SAME(wb_task_rate(&rate, pos), (wide)rate.dirty_ratelimit * pos / 1024);
	now -= min_u64(now, how & 2 ? fuzz_any_size(in, 10) : 0);
	SAME(pause_max(rate.avg_bw, place.wb_dirty), maxp);
	to = pause_targets(rate.avg_bw, rate.dirty_ratelimit, (uint64_t)maxp, task_rate);
	check_targets(&to, maxp, task_rate);

	task.nr_dirtied += pages;
	SAME(throttle_entry_limit(&task, false), task.nr_dirtied_pause);
	SAME(throttle_entry_limit(&task, true), min(task.nr_dirtied_pause, 8));
	if (how & 4)
		pages = task.nr_dirtied = min_u64(task.nr_dirtied, UINT32_MAX);
	want = sync = task;
	verdict = decide(&want, pages, task_rate, &to, how & 8, now, &pause);
	FUZZ_EQ(throttle_decide(&task, pages, task_rate, &to, how & 8, now, &got_pause), verdict);
	FUZZ_EQ(task.nr_dirtied, want.nr_dirtied);
	FUZZ_EQ(task.nr_dirtied_pause, want.nr_dirtied_pause);
	FUZZ_EQ(task.paused_when_ms, want.paused_when_ms);
	if (verdict == THROTTLE_SLEEP) {
		SAME(got_pause, pause);
		FUZZ_CHECK(got_pause <= 200, "a pause of %llu ms", (unsigned long long)got_pause);
	}
	if (verdict == THROTTLE_AGAIN)
		FUZZ_CHECK(memcmp(&task, &sync, sizeof(task)) == 0, "-EAGAIN has changed the task");
	if (how & 16) {
		throttle_free_run(&task, poll_interval(place.dirty, limits.thresh), now);
		FUZZ_EQ(task.nr_dirtied, 0);
		FUZZ_EQ(task.paused_when_ms, now);
	}
}

static void check_chunk(struct fuzz_in *in)
{
	uint64_t limit = fuzz_any_size(in, LIMIT_BITS), left = fuzz_any_size(in, 64);
	uint64_t least = 1 + fuzz_any_size(in, 20), chunk = writeback_chunk(rate.avg_bw, limit, left, least);
	wide units = min(min((wide)rate.avg_bw / 2, limit / 8), left);

	SAME(chunk, (units + least) / least * least);
	FUZZ_CHECK(chunk >= least && chunk % least == 0, "a chunk of %llu", (unsigned long long)chunk);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz_in in = fuzz_begin(data, size);

	memset(&shares, 0, sizeof(shares));
	shares.all = 1;
	fprop_domain_init(&domain);
	for (unsigned i = 0; i < 3; i++)
		fprop_local_init(&locals[i], &domain);
	throttle_task_init(&task);
	limits = dirty_limits_from_units(199951, 99853);
	tracked = limits.thresh;
	place = (struct pos_input){ .limits = limits, .hard = tracked, .wb_thresh = tracked };
	share_now = rate_now = 1;
	written = dirtied = 0;
	pos = POS_ONE;
	wb_rate_init(&rate, written, dirtied, rate_now);
	for (unsigned i = 0; i < ROUNDS && fuzz_more(&in); i++) {
		switch (fuzz_byte(&in) % 6) {
		case 0: check_limits(&in); break;
		case 1: check_shares(&in); break;
		case 2: check_position(&in); break;
		case 3: check_rates(&in); break;
		case 4: check_pauses(&in); break;
		default: check_chunk(&in);
		}
	}
	return 0;
}
