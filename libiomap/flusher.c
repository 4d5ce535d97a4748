/*
 * flusher.c - which inode is written now, by which thread
 *
 * A backing device has one flusher and lists of dirty inodes:
 *
 *      dirty     newest at the head, by the time it first turned dirty
 *      io        the batch being worked on, next at the tail
 *      more_io   had its chunk and has more; waits until the batch had its turn
 *
 * The flusher works for five reasons: more is dirty than the background limit; inodes are older than the expire time; somebody
 * needs memory; failed blocks are due for another try; somebody wants a range, or what DONTCACHE writes left dirty, written now.
 * Each inode gets one chunk (about half a second of device time) a round, so a large file does not starve small ones. Helpers of
 * the cache take inodes off the same batch.
 *
 * Invariants: I_DIRTY <=> the inode is on one of the lists, or in the hands of whoever set I_SYNC; the lists hold one reference.
 *             Who clears I_DIRTY looks at the marks again afterwards, who sets a mark looks at I_DIRTY afterwards.
 * Locking:    wb->list_lock; inode_lock before it for references.
 * Kernel:     fs/fs-writeback.c. Differs: quotas count submitted bytes; a closed inode is waited for and taken apart here.
 */
#include <errno.h>
#include "flusher.h"
#include "ioend.h"
#include "mutant.h"
#include "sync.h"
#include "throttle.h"
#include "writeback.h"

#define RETRY_FIRST_NS NS_PER_S
#define RETRY_MOST_NS  (60 * NS_PER_S)
#define START_AGAIN_NS (10 * NS_PER_MS) /* what is to be started is busy: until the next look, doubled with each */
#define START_TRIES 8

/* --- lists ------------------------------------------------------------------------------------------------ */

void flusher_mark_dirty(struct inode *inode)
{
	struct iomap_cache *cache = inode->cache;
	struct wb *wb = inode->wb;
	bool first;

	fence_full();           /* the mark before the look; pairs with the fence in try_clean() */
	if (load_relaxed(&inode->flags) & I_DIRTY)
		return;
	mutex_lock(&cache->inode_lock);
	mutex_lock(&wb->list_lock);
	if (!(load_relaxed(&inode->flags) & I_DIRTY)) {
		or_relaxed(&inode->flags, I_DIRTY);
		inode->refs++;
		inode->dirtied_when_ns = plat_now_ns();
		first = list_empty(&wb->dirty) && list_empty(&wb->io) && list_empty(&wb->more_io);
		if (list_empty(&inode->wb_node))
			list_add_head(&wb->dirty, &inode->wb_node);
		if (first)
			cond_broadcast(&wb->work_cond);         /* arms the periodic timer */
	}
	mutex_unlock(&wb->list_lock);
	mutex_unlock(&cache->inode_lock);
}

/*
 * Is there nothing to do for it? What nobody has open stays until a flush has covered it: who else would know of
 * it?
 */
static bool is_settled(struct inode *inode)
{
	return load_relaxed(&inode->handles) ? inode_is_clean(inode) : inode_is_durable(inode);
}

/* list_lock held: off the lists if there is nothing to do. True: the caller drops a reference. */
static bool try_clean(struct inode *inode)
{
	lockdep_assert_held(&inode->wb->list_lock);
	if (!(load_relaxed(&inode->flags) & I_DIRTY) || (load_relaxed(&inode->flags) & I_SYNC) || !is_settled(inode))
		return false;
	and_relaxed(&inode->flags, ~(unsigned)I_DIRTY);
	fence_full();           /* pairs with the fence in flusher_mark_dirty() */
	if (!MUTANT(M_NO_SECOND_LOOK) && !is_settled(inode)) {
		or_relaxed(&inode->flags, I_DIRTY);
		return false;
	}
	list_del(&inode->wb_node);
	inode->retry_delay_ns = inode->retry_at_ns = 0;
	inode->start_end = 0;
	return true;
}

void flusher_check_clean(struct inode *inode)
{
	bool put;

	mutex_lock(&inode->wb->list_lock);
	put = try_clean(inode);
	mutex_unlock(&inode->wb->list_lock);
	if (put)
		inode_put(inode);
}

bool flusher_lets_go(struct inode *inode)
{
	bool put, goes;

	mutex_lock(&inode->wb->list_lock);
	put = try_clean(inode);
	goes = put || (load_relaxed(&inode->flags) & I_SYNC) || is_settled(inode);
	mutex_unlock(&inode->wb->list_lock);
	if (put)
		inode_put(inode);
	return goes;
}

void flusher_linger(struct inode *inode)
{
	flusher_mark_dirty(inode);
	mutex_lock(&inode->wb->list_lock);
	inode->dirtied_when_ns = 0;     /* older than any expire time */
	if ((load_relaxed(&inode->flags) & I_DIRTY) && !(load_relaxed(&inode->flags) & I_SYNC))
		list_move_tail(&inode->wb->dirty, &inode->wb_node);
	mutex_unlock(&inode->wb->list_lock);
}

void flusher_forget(struct inode *inode)
{
	struct wb *wb = inode->wb;
	bool put;

	mutex_lock(&wb->list_lock);
	while (load_relaxed(&inode->flags) & I_SYNC)
		cond_wait(&wb->work_cond, &wb->list_lock);
	put = load_relaxed(&inode->flags) & I_DIRTY;
	and_relaxed(&inode->flags, ~(unsigned)I_DIRTY);
	list_del(&inode->wb_node);
	mutex_unlock(&wb->list_lock);
	if (put)
		inode_put(inode);
}

/* list_lock held. To the head of dirty, younger than what is there: back off. */
static void redirty_tail(struct wb *wb, struct inode *inode)
{
	if (!list_empty(&wb->dirty)) {
		struct inode *newest = list_first(&wb->dirty, struct inode, wb_node);

		if (inode->dirtied_when_ns < newest->dirtied_when_ns)
			inode->dirtied_when_ns = plat_now_ns();
	}
	list_move_head(&wb->dirty, &inode->wb_node);
}

/* list_lock held. Back to its place by age: only a part of it was looked at. */
static void put_back(struct wb *wb, struct inode *inode)
{
	struct list *older = wb->dirty.prev;

	while (older != &wb->dirty && list_entry(older, struct inode, wb_node)->dirtied_when_ns < inode->dirtied_when_ns)
		older = older->prev;
	list_del(&inode->wb_node);
	list_add_head(older, &inode->wb_node);          /* behind it */
}

/* list_lock held. The next batch: what was parked, then what turned dirty no later than @cutoff_ns. */
static void queue_io(struct wb *wb, uint64_t cutoff_ns)
{
	struct list batch;

	list_init(&batch);
	while (!list_empty(&wb->dirty)) {
		struct inode *oldest = list_last(&wb->dirty, struct inode, wb_node);

		if (oldest->dirtied_when_ns > cutoff_ns)
			break;
		list_del(&oldest->wb_node);
		list_add_head(&batch, &oldest->wb_node);        /* oldest ends up at the tail */
	}
	list_splice_tail(&batch, &wb->io);                      /* what is left goes first */
	list_splice_tail(&batch, &wb->more_io);
	list_splice_tail(&wb->io, &batch);
}

/* --- one inode -------------------------------------------------------------------------------------------- */

/* The next inode of the batch, I_SYNC set, or NULL. */
static struct inode *take(struct wb *wb)
{
	struct inode *inode = NULL;

	mutex_lock(&wb->list_lock);
	while (!list_empty(&wb->io)) {
		struct inode *last = list_last(&wb->io, struct inode, wb_node);

		if (!(load_relaxed(&last->flags) & I_SYNC)) {
			inode = last;
			or_relaxed(&inode->flags, I_SYNC);
			list_del(&inode->wb_node);
			break;
		}
		list_move_head(&wb->more_io, &last->wb_node);
	}
	mutex_unlock(&wb->list_lock);
	return inode;
}

/* Nobody has it open: once its data is written, the size, space reserved ahead, and a flush; then it may go. */
static void finish_closed(struct inode *inode)
{
	ioend_wait_idle(inode);
	if (!mapping_is_marked(&inode->mapping, XA_MARK_DIRTY))
		sync_closed(inode);
}

/* list_lock held: one range that holds both. */
static void add_range(struct inode *inode, uint64_t start, uint64_t end)
{
	inode->start_pos = inode->start_end ? min_u64(inode->start_pos, start) : start;
	inode->start_end = max_u64(inode->start_end, end);
}

/*
 * Writes one chunk of an inode taken by take(): the bytes submitted. Puts it where it belongs. A range that somebody wants started
 * comes first; with @range_only nothing else does where there is one.
 */
static uint64_t write_one(struct wb *wb, struct inode *inode, uint64_t quota, uint64_t cutoff_ns, bool range_only)
{
	uint64_t wrote = 0, now = plat_now_ns(), start, end;
	bool retry, closed, put, some, left;

	closed = !load_relaxed(&inode->handles);
	mutex_lock(&wb->list_lock);
	retry = now >= inode->retry_at_ns;
	start = inode->start_pos;
	end = inode->start_end;
	inode->start_end = 0;
	mutex_unlock(&wb->list_lock);
	some = !end || !range_only;
	throttle_update_bandwidth(wb, !load_relaxed(&inode->nr_inflight));
	if (end)
		wrote = writeback_start(inode, start, end, quota, true);
	if (some && wrote < quota)
		wrote += writeback_some(inode, quota - wrote, retry);
	if (closed && !load_relaxed(&inode->cache->abandoned))
		finish_closed(inode);
	throttle_update_bandwidth(wb, false);
	left = end && mapping_marked_in(&inode->mapping, start, end, XA_MARK_DIRTY);

	mutex_lock(&wb->list_lock);
	and_relaxed(&inode->flags, ~(unsigned)I_SYNC);
	if (inode->start_end && !wb->start_at_ns)
		wb->start_at_ns = now;          /* asked for while we had it */
	if (left)
		add_range(inode, start, end);   /* more than a chunk, or busy */
	put = try_clean(inode);
	if (!put) {
		if (!some)
			put_back(wb, inode);
		else if (mapping_is_marked(&inode->mapping, XA_MARK_DIRTY) && wrote >= quota && inode->dirtied_when_ns <= cutoff_ns)
			list_add_head(&wb->more_io, &inode->wb_node);
		else
			redirty_tail(wb, inode);
	}
	cond_broadcast(&wb->work_cond);
	mutex_unlock(&wb->list_lock);
	if (put)
		inode_put(inode);
	return wrote;
}

/* --- rounds ----------------------------------------------------------------------------------------------- */

enum reason { REASON_BACKGROUND, REASON_EXPIRED, REASON_REQUEST, REASON_RETRY };

static bool other_work(struct wb *wb)
{
	bool other;

	mutex_lock(&wb->list_lock);
	other = wb->stop || wb->requested_bytes;
	mutex_unlock(&wb->list_lock);
	return other;
}

static void call_helpers(struct iomap_cache *cache, struct wb *wb)
{
	mutex_lock(&cache->helper_lock);
	if (cache->nr_helpers) {
		cache->assist = wb;
		cond_broadcast(&cache->helper_cond);
	}
	mutex_unlock(&cache->helper_lock);
}

/* Works until @bytes are submitted, the reason is gone, or nothing moves any more. */
static void work(struct wb *wb, enum reason reason, uint64_t bytes)
{
	struct iomap_cache *cache = wb->owner;
	uint64_t start = plat_now_ns(), done = 0, round_done = 0;
	bool queued = false;

	while (done < bytes && !load_relaxed(&cache->abandoned)) {
		uint64_t cutoff = start, seen = wb_completions(wb), wrote;
		struct inode *inode;
		bool several;

		if (reason == REASON_BACKGROUND && (other_work(wb) || !throttle_over_background(cache, wb)))
			break;
		if (reason == REASON_EXPIRED && other_work(wb))
			break;
		if (reason == REASON_EXPIRED)
			cutoff = start - min_u64(start, load_relaxed(&cache->dirty_expire_ms) * NS_PER_MS);
		else if (reason == REASON_BACKGROUND)
			cutoff = plat_now_ns();
		mutex_lock(&wb->list_lock);
		if (list_empty(&wb->io)) {
			if (queued && !round_done) {
				/* A whole round moved nothing: what is dirty is in flight, or failed and not due. */
				bool wait = reason == REASON_BACKGROUND || reason == REASON_REQUEST;

				mutex_unlock(&wb->list_lock);
				if (!wait || !wb_level(wb, WB_WRITEBACK))
					break;
				wb_wait_completion(wb, seen, plat_now_ns() + 100 * NS_PER_MS);
				mutex_lock(&wb->list_lock);
			}
			queue_io(wb, cutoff);
			queued = true;
			round_done = 0;
		}
		several = wb->io.next != wb->io.prev;
		mutex_unlock(&wb->list_lock);
		if (several)
			call_helpers(cache, wb);
		inode = take(wb);
		if (!inode) {
			if (reason == REASON_EXPIRED || reason == REASON_RETRY)
				break;
			mutex_lock(&wb->list_lock);
			several = list_empty(&wb->more_io) && list_empty(&wb->dirty);
			mutex_unlock(&wb->list_lock);
			if (several)
				break;  /* nothing left at all */
			continue;
		}
		wrote = write_one(wb, inode, min_u64(throttle_chunk(cache, wb), max_u64(bytes - done, PAGE_BYTES)), cutoff, false);
		done += wrote;
		round_done += wrote;
	}
}

/* list_lock held: inodes whose failed blocks are due go to the batch. */
static bool queue_retries(struct wb *wb)
{
	uint64_t now = plat_now_ns(), next = 0;
	bool any = false;

	list_for_each_safe(it, &wb->dirty) {
		struct inode *inode = list_entry(it, struct inode, wb_node);

		if (inode->retry_at_ns && inode->retry_at_ns <= now) {
			list_move_tail(&wb->io, &inode->wb_node);
			any = true;
		} else if (inode->retry_at_ns) {
			next = next ? min_u64(next, inode->retry_at_ns) : inode->retry_at_ns;
		}
	}
	wb->next_retry_ns = next;
	return any;
}

static void retry_failed(struct wb *wb)
{
	struct iomap_cache *cache = wb->owner;
	struct inode *inode;
	bool any;

	mutex_lock(&wb->list_lock);
	any = queue_retries(wb);
	mutex_unlock(&wb->list_lock);
	while (any && !load_relaxed(&cache->abandoned) && (inode = take(wb)))
		write_one(wb, inode, UINT64_MAX, plat_now_ns(), false);
}

/* list_lock held: inodes with a range to be started, and (@behind) those with dirty data of DONTCACHE writes. */
static bool queue_wanted(struct wb *wb, struct list *from, bool behind, bool move)
{
	bool any = false;

	list_for_each_safe(it, from) {
		struct inode *inode = list_entry(it, struct inode, wb_node);

		if (!inode->start_end && !(behind && load_relaxed(&inode->mapping.dontcache_dirty) > 0))
			continue;
		any = true;
		if (move)
			list_move_tail(&wb->io, &inode->wb_node);
	}
	return any;
}

/*
 * One round over what is wanted: a chunk of each inode. What is left gets its next round at once if something moved, else a little
 * later (it is in flight, or locked), and after some tries it is left to the reasons that write everything.
 */
static void start_wanted(struct wb *wb, bool behind)
{
	struct iomap_cache *cache = wb->owner;
	struct inode *inode;
	uint64_t done = 0;
	bool any;

	mutex_lock(&wb->list_lock);
	any = queue_wanted(wb, &wb->more_io, behind, true);
	any |= queue_wanted(wb, &wb->dirty, behind, true);
	any |= !list_empty(&wb->io);
	mutex_unlock(&wb->list_lock);
	while (any && !load_relaxed(&cache->abandoned) && (inode = take(wb)))
		done += write_one(wb, inode, throttle_chunk(cache, wb), plat_now_ns(), true);
	mutex_lock(&wb->list_lock);
	behind &= wb_level(wb, WB_DONTCACHE) > 0;
	any = behind || queue_wanted(wb, &wb->more_io, false, false) || queue_wanted(wb, &wb->dirty, false, false);
	wb->start_tries = done ? 0 : wb->start_tries + 1;
	if (any && wb->start_tries < START_TRIES) {
		uint64_t at = plat_now_ns() + (done ? 0 : START_AGAIN_NS << wb->start_tries);

		wb->behind_wanted |= behind;
		wb->start_at_ns = wb->start_at_ns ? min_u64(wb->start_at_ns, at) : at;
	}
	mutex_unlock(&wb->list_lock);
}

static void flusher_main(void *arg)
{
	struct wb *wb = arg;
	struct iomap_cache *cache = wb->owner;

	cache_thread_begin(cache);
	mutex_lock(&wb->list_lock);
	while (!wb->stop) {
		unsigned interval = load_relaxed(&cache->dirty_writeback_ms);
		bool dirty = !list_empty(&wb->dirty) || !list_empty(&wb->io) || !list_empty(&wb->more_io), old, background;
		uint64_t now = plat_now_ns(), when = UINT64_MAX, bytes = wb->requested_bytes;
		bool retry = wb->next_retry_ns && wb->next_retry_ns <= now;
		bool start = wb->start_at_ns && wb->start_at_ns <= now, behind;

		if (dirty && interval != IOMAP_NEVER)
			when = wb->last_old_flush_ns + interval * NS_PER_MS;
		old = now >= when;
		background = wb->background_wanted;
		if (!old && !background && !bytes && !retry && !start) {
			if (wb->next_retry_ns)
				when = min_u64(when, wb->next_retry_ns);
			if (wb->start_at_ns)
				when = min_u64(when, wb->start_at_ns);
			if (when == UINT64_MAX)
				cond_wait(&wb->work_cond, &wb->list_lock);
			else
				cond_wait_until(&wb->work_cond, &wb->list_lock, when);
			continue;
		}
		wb->running = true;
		wb->background_wanted = false;
		wb->requested_bytes = 0;
		behind = start && wb->behind_wanted;
		if (start) {
			wb->start_at_ns = 0;
			wb->behind_wanted = false;
		}
		if (old)
			wb->last_old_flush_ns = now;
		mutex_unlock(&wb->list_lock);
		if (bytes)
			work(wb, REASON_REQUEST, bytes);
		if (start)
			start_wanted(wb, behind);
		if (retry)
			retry_failed(wb);
		if (old)
			work(wb, REASON_EXPIRED, UINT64_MAX);
		if (old || background || bytes || retry)        /* to start one file's range says nothing of the others */
			work(wb, REASON_BACKGROUND, UINT64_MAX);
		mutex_lock(&wb->list_lock);
		wb->running = false;
		if (!dirty)
			wb->last_old_flush_ns = plat_now_ns();
	}
	mutex_unlock(&wb->list_lock);
	cache_thread_end(cache);
}

int flusher_start(struct wb *wb)
{
	int ret = thread_create(&wb->flusher, "iomap-flush", flusher_main, wb);

	wb->has_flusher = !ret;
	return ret;
}

void flusher_ask_stop(struct wb *wb)
{
	mutex_lock(&wb->list_lock);
	wb->stop = true;
	cond_broadcast(&wb->work_cond);
	mutex_unlock(&wb->list_lock);
}

void flusher_stop(struct wb *wb)
{
	struct iomap_cache *cache = wb->owner;

	if (!wb->has_flusher)
		return;
	flusher_ask_stop(wb);
	thread_join(&wb->flusher);
	wb->has_flusher = false;
	mutex_lock(&cache->helper_lock);
	if (cache->assist == wb)
		cache->assist = NULL;
	while (wb->assistants)
		cond_wait(&cache->helper_cond, &cache->helper_lock);
	mutex_unlock(&cache->helper_lock);
}

void flusher_wake(struct wb *wb)
{
	mutex_lock(&wb->list_lock);
	if (!wb->background_wanted) {
		wb->background_wanted = true;
		cond_broadcast(&wb->work_cond);
	}
	mutex_unlock(&wb->list_lock);
}

void flusher_wake_all(struct iomap_cache *cache)
{
	mutex_lock(&cache->inode_lock);
	list_for_each(it, &cache->wbs) {
		struct wb *wb = list_entry(it, struct wb, all);

		if (wb_level(wb, WB_DIRTY))
			flusher_wake(wb);
	}
	mutex_unlock(&cache->inode_lock);
}

void flusher_request(struct wb *wb, uint64_t bytes)
{
	mutex_lock(&wb->list_lock);
	wb->requested_bytes = max_u64(wb->requested_bytes, bytes);
	cond_broadcast(&wb->work_cond);
	mutex_unlock(&wb->list_lock);
}

/* list_lock held. */
static void start_now(struct wb *wb)
{
	uint64_t now = plat_now_ns();

	wb->start_tries = 0;
	if (!wb->start_at_ns || wb->start_at_ns > now) {
		wb->start_at_ns = now;
		cond_broadcast(&wb->work_cond);
	}
}

void flusher_write_behind(struct wb *wb)
{
	mutex_lock(&wb->list_lock);
	wb->behind_wanted = true;
	start_now(wb);
	mutex_unlock(&wb->list_lock);
}

void flusher_write_range(struct inode *inode, uint64_t start, uint64_t end)
{
	struct wb *wb = inode->wb;

	if (!mapping_marked_in(&inode->mapping, start, end, XA_MARK_DIRTY))
		return;
	mutex_lock(&wb->list_lock);
	add_range(inode, start, end);
	start_now(wb);
	mutex_unlock(&wb->list_lock);
}

void flusher_write_failed(struct inode *inode, int error)
{
	struct wb *wb = inode->wb;
	uint64_t now = plat_now_ns();

	store_relaxed(&wb->last_error, error);
	mutex_lock(&wb->list_lock);
	if (now >= inode->retry_at_ns) {        /* one step a burst of failures, not one a request */
		inode->retry_delay_ns = inode->retry_delay_ns ? min_u64(inode->retry_delay_ns * 2, RETRY_MOST_NS) : RETRY_FIRST_NS;
		inode->retry_at_ns = now + inode->retry_delay_ns;
	}
	if (!wb->next_retry_ns || inode->retry_at_ns < wb->next_retry_ns) {
		wb->next_retry_ns = inode->retry_at_ns;
		cond_broadcast(&wb->work_cond);
	}
	mutex_unlock(&wb->list_lock);
}

/* --- helpers ---------------------------------------------------------------------------------------------- */

static void helper_main(void *arg)
{
	struct iomap_cache *cache = arg;

	cache_thread_begin(cache);
	mutex_lock(&cache->helper_lock);
	while (!cache->helper_stop) {
		struct wb *wb = cache->assist;
		struct inode *inode;

		if (!wb) {
			cond_wait(&cache->helper_cond, &cache->helper_lock);
			continue;
		}
		cache->assist = NULL;
		wb->assistants++;
		mutex_unlock(&cache->helper_lock);
		while (!load_relaxed(&cache->abandoned) && (inode = take(wb)))
			write_one(wb, inode, throttle_chunk(cache, wb), plat_now_ns(), false);
		mutex_lock(&cache->helper_lock);
		wb->assistants--;
		cond_broadcast(&cache->helper_cond);
	}
	mutex_unlock(&cache->helper_lock);
	cache_thread_end(cache);
}

int flusher_start_helpers(struct iomap_cache *cache)
{
	unsigned want = cache->writeback_threads;

	if (!want)
		return 0;
	cache->helpers = mem_alloc(&cache->zone.mem, want * sizeof(*cache->helpers));
	if (!cache->helpers)
		return -ENOMEM;
	for (; cache->nr_helpers < want; cache->nr_helpers++) {
		int ret = thread_create(&cache->helpers[cache->nr_helpers], "iomap-helper", helper_main, cache);

		if (ret) {
			flusher_stop_helpers(cache);
			return ret;
		}
	}
	return 0;
}

void flusher_ask_stop_helpers(struct iomap_cache *cache)
{
	mutex_lock(&cache->helper_lock);
	cache->helper_stop = true;
	cond_broadcast(&cache->helper_cond);
	mutex_unlock(&cache->helper_lock);
}

void flusher_stop_helpers(struct iomap_cache *cache)
{
	flusher_ask_stop_helpers(cache);
	while (cache->nr_helpers)
		thread_join(&cache->helpers[--cache->nr_helpers]);
	mem_free(&cache->zone.mem, cache->helpers, cache->writeback_threads * sizeof(*cache->helpers));
	cache->helpers = NULL;
}
