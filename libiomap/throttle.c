/*
 * throttle.c - slow writers to the speed their device cleans at
 *
 * A thread that dirtied more than its share sleeps here before its next step. The arithmetic is throttle-math.c's; this file
 * reads the counters, keeps the estimates and sleeps.
 *
 *      0 ........ background ..... free run ..... set point ..... hard limit
 *      nobody minds | flusher works |              | each writer at    | nobody dirties
 *                   |               | pauses begin | bandwidth / N     | more
 *
 * The level is dirty + in flight, of all devices together; what one device's failed blocks hold beyond half the limit is left
 * out of it for writers of the others. A writer whose device has failed blocks and has completed nothing well for two seconds gets the
 * device's error instead of sleeping on; once its failed blocks hold half of the limit, before it dirties anything.
 *
 * Invariants: no pause is longer than 200 ms; nobody sleeps here holding a lock but append_lock; the library's own threads never do.
 * Locking:    wb->bw_lock for the estimates, the domain's lock for the tracked limit and shares; a task is its thread's own.
 * Kernel:     balance_dirty_pages() in mm/page-writeback.c, v6.17. Differs: bytes outside, exact sums, no cgroups.
 */
#include <errno.h>
#include "flusher.h"
#include "throttle.h"

#define STEP_MIN UINT64_C(65536)
#define DEAD_AFTER_NS (2 * NS_PER_S)

static uint64_t now_ms(void) { return plat_now_ns() / NS_PER_MS; }
static uint64_t units(uint64_t bytes) { return div_round_up(bytes, THROTTLE_UNIT_BYTES); }
static uint64_t total_units(const struct wb *wb, enum wb_total t) { return load_relaxed(&wb->total[t]) / THROTTLE_UNIT_BYTES; }

static uint64_t sum_level(struct iomap_cache *cache, enum wb_level l)
{
	int64_t v = load_relaxed(&cache->sums.level[l]);

	return v > 0 ? (uint64_t)v : 0;
}

void throttle_init(struct throttle_domain *d)
{
	mutex_init(&d->lock, LOCK_LEAF);
	fprop_domain_init(&d->completions);
	d->tracked_limit = 0;
	d->tracked_stamp_ms = 0;
}

void throttle_fini(struct throttle_domain *d) { mutex_fini(&d->lock); }

void throttle_dirtied(struct task *task, uint64_t bytes)
{
	uint64_t all = task->odd_bytes + bytes;

	task->throttle.nr_dirtied += all / THROTTLE_UNIT_BYTES;
	task->odd_bytes = all % THROTTLE_UNIT_BYTES;
	task_count(task, TASK_DIRTIED_BYTES, bytes);
}

static struct dirty_limits limits_of(struct iomap_cache *cache)
{
	uint64_t dirty = load_relaxed(&cache->dirty_bytes);

	return dirty_limits_from_bytes(dirty, load_relaxed(&cache->dirty_background_bytes));
}

static struct fraction share_of(struct iomap_cache *cache, struct wb *wb)
{
	struct throttle_domain *d = &cache->throttle;
	struct fraction f;

	mutex_lock(&d->lock);
	fprop_timer(&d->completions, now_ms());
	f = fprop_fraction(&d->completions, &wb->share);
	mutex_unlock(&d->lock);
	return f;
}

void throttle_completed(struct iomap_cache *cache, struct wb *wb, uint64_t bytes)
{
	struct throttle_domain *d = &cache->throttle;

	mutex_lock(&d->lock);
	fprop_add(&d->completions, &wb->share, units(bytes), now_ms());
	mutex_unlock(&d->lock);
}

bool throttle_over_background(struct iomap_cache *cache, struct wb *wb)
{
	struct dirty_limits l = limits_of(cache);
	uint64_t own = wb_level(wb, WB_DIRTY);

	if (!own)
		return false;
	return units(sum_level(cache, WB_DIRTY)) > l.bg || units(own) > wb_share(l.bg, share_of(cache, wb));
}

void throttle_update_bandwidth(struct wb *wb, bool idle)
{
	uint64_t now = now_ms(), written = total_units(wb, WB_WRITTEN), dirtied = total_units(wb, WB_DIRTIED);

	mutex_lock(&wb->bw_lock);
	if (idle && wb_rate_is_stale(&wb->rate, now))
		wb_rate_restart(&wb->rate, written, dirtied, now);
	else if (wb_rate_is_due(&wb->rate, now))
		wb_rate_update_bandwidth(&wb->rate, written, dirtied, now);
	mutex_unlock(&wb->bw_lock);
}

uint64_t throttle_chunk(struct iomap_cache *cache, struct wb *wb)
{
	uint64_t bw;

	mutex_lock(&wb->bw_lock);
	bw = wb->rate.avg_bw;
	mutex_unlock(&wb->bw_lock);
	return writeback_chunk(bw, limits_of(cache).thresh, UINT64_MAX, WRITEBACK_CHUNK_MIN) * THROTTLE_UNIT_BYTES;
}

/* What other devices' failed blocks hold beyond half the limit stands in nobody else's way. */
static uint64_t stuck_elsewhere(struct iomap_cache *cache, struct wb *wb)
{
	uint64_t failed = sum_level(cache, WB_FAILED), own = wb_level(wb, WB_FAILED), half = load_relaxed(&cache->dirty_bytes) / 2;

	failed = failed > own ? failed - own : 0;
	return failed > half ? failed - half : 0;
}

/* The error of a device that can not be waited for, or 0. */
static int dead_error(struct iomap_cache *cache, struct wb *wb)
{
	uint64_t failed = wb_level(wb, WB_FAILED);
	int error = load_relaxed(&wb->last_error);
	uint64_t good;

	if (!failed || !error)
		return 0;
	if (failed * 2 >= load_relaxed(&cache->dirty_bytes))
		return error;
	good = load_relaxed(&wb->last_good_ns);
	return plat_now_ns() - good >= DEAD_AFTER_NS ? error : 0;
}

/* The tracked limit, moved on if that is due. */
static uint64_t tracked_limit(struct throttle_domain *d, struct dirty_limits l, uint64_t dirty, uint64_t now)
{
	uint64_t limit;

	mutex_lock(&d->lock);
	if (!d->tracked_limit || l.thresh > d->tracked_limit || now - d->tracked_stamp_ms >= BANDWIDTH_INTERVAL_MS) {
		d->tracked_limit = d->tracked_limit ? dirty_limit_step(d->tracked_limit, l.thresh, dirty) : l.thresh;
		d->tracked_stamp_ms = now;
	}
	limit = d->tracked_limit;
	mutex_unlock(&d->lock);
	return limit;
}

static int balance(struct iomap_cache *cache, struct wb *wb, struct task *task, bool nowait)
{
	struct throttle_task *t = &task->throttle;

	for (;;) {
		uint64_t now = now_ms(), pause, setpoint, pos, rate, total, written;
		struct dirty_limits l = limits_of(cache);
		struct pos_input in = { .limits = l };
		struct pause_targets targets;
		enum throttle_verdict verdict;
		int error;

		total = sum_level(cache, WB_DIRTY);
		total += sum_level(cache, WB_WRITEBACK);
		in.dirty = units(total - min_u64(total, stuck_elsewhere(cache, wb)));
		if (units(sum_level(cache, WB_DIRTY)) > l.bg)
			flusher_wake(wb);
		if (in.dirty <= dirty_freerun(l)) {
			store_relaxed(&wb->dirty_exceeded, false);
			throttle_free_run(t, poll_interval(in.dirty, l.thresh), now);
			return 0;
		}
		flusher_wake_all(cache);        /* whoever has dirty data can help below the limit */
		in.hard = dirty_hard_limit(l, tracked_limit(&cache->throttle, l, in.dirty, now));
		in.wb_thresh = wb_share(l.thresh, share_of(cache, wb));
		in.wb_dirty = units(wb_owed(wb));
		store_relaxed(&wb->dirty_exceeded, in.wb_dirty > in.wb_thresh && in.dirty > l.thresh);
		setpoint = dirty_setpoint(l, in.hard);
		mutex_lock(&wb->bw_lock);
		in.avg_bw = wb->rate.avg_bw;
		pos = pos_ratio(&in);
		if (wb_rate_is_due(&wb->rate, now)) {
			wb_rate_update_ratelimit(&wb->rate, pos, total_units(wb, WB_DIRTIED), in.dirty, setpoint, now);
			written = total_units(wb, WB_WRITTEN);
			wb_rate_update_bandwidth(&wb->rate, written, total_units(wb, WB_DIRTIED), now);
		}
		rate = wb_task_rate(&wb->rate, pos);
		targets = pause_targets(wb->rate.avg_bw, wb->rate.dirty_ratelimit, pause_max(wb->rate.avg_bw, in.wb_dirty), rate);
		mutex_unlock(&wb->bw_lock);

		verdict = throttle_decide(t, t->nr_dirtied, rate, &targets, nowait, now, &pause);
		if (verdict == THROTTLE_RETURN)
			return 0;
		if (verdict == THROTTLE_AGAIN)
			return -EAGAIN;
		error = dead_error(cache, wb);
		if (error)
			return error;
		might_sleep();
		plat_sleep_ns(pause * NS_PER_MS);
		task_count(task, TASK_THROTTLED_NS, pause * NS_PER_MS);
		task_count(task, TASK_PAUSES, 1);
		if (rate)
			return 0;
		/* Over the hard limit: look again. A device that owes nothing is not the one to wait for. */
		if (!wb_level(wb, WB_DIRTY) && !wb_level(wb, WB_WRITEBACK))
			return 0;
		flusher_request(wb, wb_level(wb, WB_DIRTY));    /* it may be others who are over; what is ours can be cleaned */
		if (!cache_is_usable(cache))
			return -EBADF;
	}
}

uint64_t throttle_step(struct iomap_cache *cache, uint64_t most)
{
	uint64_t limit = load_relaxed(&cache->dirty_bytes) / 16;

	while (most > limit && most > STEP_MIN)
		most /= 2;
	return most;
}

int throttle_balance(struct iomap_cache *cache, struct wb *wb, struct task *task, bool nowait)
{
	struct throttle_task *t = &task->throttle;
	uint64_t failed = wb_level(wb, WB_FAILED), leaked, limit;

	if (task_is_cleaning(task))
		return 0;
	if (failed && failed * 2 >= load_relaxed(&cache->dirty_bytes) && load_relaxed(&wb->last_error))
		return load_relaxed(&wb->last_error);
	limit = throttle_entry_limit(t, load_relaxed(&wb->dirty_exceeded));
	limit = min_u64(limit, max_u64(limits_of(cache).thresh / 8, 1));        /* a small limit wants looking at more often */
	leaked = load_relaxed(&cache->leaked_units);
	while (leaked && t->nr_dirtied < limit) {       /* what threads that are gone have not paid for */
		uint64_t take = min_u64(leaked, limit - t->nr_dirtied);

		if (cmpxchg_relaxed(&cache->leaked_units, &leaked, leaked - take)) {
			t->nr_dirtied += take;
			break;
		}
	}
	return t->nr_dirtied >= limit ? balance(cache, wb, task, nowait) : 0;
}

void throttle_look(struct iomap_cache *cache, struct throttle_view *v)
{
	struct dirty_limits l = limits_of(cache);
	uint64_t hard;

	mutex_lock(&cache->throttle.lock);
	hard = dirty_hard_limit(l, cache->throttle.tracked_limit);
	mutex_unlock(&cache->throttle.lock);
	*v = (struct throttle_view){
		.limit = l.thresh * THROTTLE_UNIT_BYTES, .background = l.bg * THROTTLE_UNIT_BYTES,
		.setpoint = dirty_setpoint(l, hard) * THROTTLE_UNIT_BYTES,
	};
	mutex_lock(&cache->inode_lock);
	list_for_each(it, &cache->wbs) {
		struct wb *wb = list_entry(it, struct wb, all);

		mutex_lock(&wb->bw_lock);
		v->bandwidth += wb->rate.avg_bw * THROTTLE_UNIT_BYTES;
		v->ratelimit = max_u64(v->ratelimit, wb->rate.dirty_ratelimit * THROTTLE_UNIT_BYTES);
		mutex_unlock(&wb->bw_lock);
	}
	mutex_unlock(&cache->inode_lock);
}
