/*
 * reclaim.c - which folio goes
 *
 * Two queues, both first in, first out, with the referenced bit read only when a folio reaches the tail:
 *
 *      new --> small (probation) --referenced--> main --referenced--> main again
 *                    |                             |
 *                    v                             v
 *              evicted, remembered             evicted
 *              by fingerprint
 *
 * A third queue, behind, holds what a DONTCACHE operation made and is done with, where it could not be dropped at once: because
 * somebody else had it locked or referenced, or because only a completion knew. The thread drops it as soon as it can; who is short
 * of memory takes from there first. What goes this way leaves no fingerprint.
 *
 * A folio whose fingerprint is remembered goes straight to main. The small queue is held at about a tenth of what is cached, so
 * one scan washes out only that. Nobody moves anything on a hit.
 *
 * Reclaim runs in a thread of its own before memory is short (the one thread that never waits for I/O: it also gives out again
 * what a device answered short), and in the caller only as the last resort. Dirty folios and
 * those in flight are passed over; where a caller who may wait finds nothing clean, the oldest dirty data is written and it waits
 * for a completion. -ENOMEM only when nothing is clean and nothing moves.
 *
 * Invariants: a cached folio is on exactly one queue (behind: only one made by DONTCACHE); only a folio that is clean, idle,
 *             unlocked and otherwise unreferenced goes.
 * Locking:    the queues' lock; folio locks are only tried.
 * Kernel:     mm/vmscan.c, mm/workingset.c. Differs: S3-FIFO's queues instead of two LRU lists.
 */
#include <errno.h>
#include <stdio.h>
#include "flusher.h"
#include "inode.h"
#include "ioend.h"
#include "mutant.h"
#include "reclaim.h"

#define SCAN_BATCH 32
#define BEHIND_FIRST_NS NS_PER_MS       /* a folio to be dropped was busy: first look, and the longest wait for another */
#define BEHIND_MOST_NS (64 * NS_PER_MS)
#define OFFER_AGAIN_NS (2 * NS_PER_MS)  /* a device's queue was full */
#define WAIT_ROUND_NS (100 * NS_PER_MS)
#define WAIT_MOST_NS (4 * NS_PER_S)     /* without any progress: give up */

#define FOLIO_QUEUED ((uint32_t)(FOLIO_BEHIND | FOLIO_SMALL | FOLIO_MAIN))

static struct iomap_cache *cache_of(struct mapping *m) { return m->owner; }
static struct iomap_folio *frame(struct iomap_cache *cache, uint32_t n) { return &cache->zone.arena.frames[n]; }

/* --- the queues ------------------------------------------------------------------------------------------- */

static void push(struct iomap_cache *cache, struct folio_queue *q, struct iomap_folio *f, uint32_t flag)
{
	uint32_t n = frame_number(&cache->zone.arena, f);

	f->next = q->head;
	f->prev = FRAME_NONE;
	if (q->head != FRAME_NONE)
		frame(cache, q->head)->prev = n;
	else
		q->tail = n;
	q->head = n;
	q->bytes += folio_bytes(f);
	folio_flags_set(f, flag);
}

static void pull(struct iomap_cache *cache, struct iomap_folio *f)
{
	struct reclaim *r = &cache->reclaim;
	uint32_t flags = folio_flags(f);
	struct folio_queue *q = flags & FOLIO_BEHIND ? &r->behind : flags & FOLIO_SMALL ? &r->small : &r->main;

	if (f->prev != FRAME_NONE)
		frame(cache, f->prev)->next = f->next;
	else
		q->head = f->next;
	if (f->next != FRAME_NONE)
		frame(cache, f->next)->prev = f->prev;
	else
		q->tail = f->prev;
	f->next = f->prev = FRAME_NONE;
	q->bytes -= folio_bytes(f);
	folio_flags_clear(f, FOLIO_QUEUED);
}

static void added(struct mapping *m, struct iomap_folio *f, bool read)
{
	struct iomap_cache *cache = cache_of(m);
	bool refault = read && ghost_take(&cache->ghost, m->file_id, folio_index(f));

	if (refault)
		add_relaxed(&cache->reclaim.refaults, 1);
	mutex_lock(&cache->reclaim.lock);
	if (refault)
		push(cache, &cache->reclaim.main, f, FOLIO_MAIN);
	else
		push(cache, &cache->reclaim.small, f, FOLIO_SMALL);
	mutex_unlock(&cache->reclaim.lock);
}

static void removed(struct mapping *m, struct iomap_folio *f, bool gone)
{
	struct iomap_cache *cache = cache_of(m);

	mutex_lock(&cache->reclaim.lock);
	if (folio_flags(f) & FOLIO_QUEUED)
		pull(cache, f);
	mutex_unlock(&cache->reclaim.lock);
	if (gone && (folio_flags(f) & FOLIO_UNUSED))
		add_relaxed(&cache->reclaim.wasted_bytes, folio_bytes(f));
}

/* --- eviction --------------------------------------------------------------------------------------------- */

/*
 * Looks at the tail of one queue: a candidate, referenced and locked, or NULL where it stays (moved on). Queue
 * lock held.
 */
static struct iomap_folio *examine(struct iomap_cache *cache, struct folio_queue *q)
{
	struct iomap_folio *f = frame(cache, q->tail);
	uint32_t flags = folio_flags(f);

	if (flags & FOLIO_REFERENCED) {
		pull(cache, f);
		push(cache, &cache->reclaim.main, f, FOLIO_MAIN);
		and_relaxed(&f->flags, ~(uint32_t)FOLIO_REFERENCED);
		return NULL;
	}
	if (!(flags & (FOLIO_DIRTY | FOLIO_WRITEBACK)) && folio_tryget(f)) {
		if (load_relaxed(&f->refs) == 2 && folio_trylock(f))
			return f;
		/* The tree holds another: this is not the last reference while the folio is queued. */
		sub_acq_rel(&f->refs, 1);
	}
	pull(cache, f);
	if (flags & FOLIO_MAIN)
		push(cache, &cache->reclaim.main, f, FOLIO_MAIN);
	else if ((flags & FOLIO_BEHIND) && folio_is_droppable(f))
		push(cache, &cache->reclaim.behind, f, FOLIO_BEHIND);
	else
		push(cache, &cache->reclaim.small, f, FOLIO_SMALL);
	return NULL;
}

static bool evict(struct iomap_cache *cache, struct iomap_folio *f)
{
	struct mapping *m = folio_mapping(f);
	bool idle = !(folio_flags(f) & (FOLIO_DIRTY | FOLIO_WRITEBACK));
	bool go = m && idle && load_relaxed(&f->refs) == 2;

	if (go) {
		if ((folio_flags(f) & (FOLIO_SMALL | FOLIO_DROPBEHIND)) == FOLIO_SMALL)
			ghost_insert(&cache->ghost, m->file_id, folio_index(f));
		add_relaxed(&cache->reclaim.evicted_bytes, folio_bytes(f));
		mapping_remove(m, f);
	}
	folio_unlock(&cache->zone, f);
	folio_put(&cache->zone, f);
	return go;
}

/* How far one call may look into each queue: twice through, once to take referenced bits away and once more. */
struct budget { uint64_t behind, small, main; };

/* The queue to look at next, or NULL when both have been looked through. Queue lock held. */
static struct folio_queue *pick(struct reclaim *r, const struct budget *b)
{
	bool small = r->small.bytes && b->small, main = r->main.bytes && b->main;

	if (r->behind.bytes && b->behind)
		return &r->behind;
	if (small && (!main || r->small.bytes * 10 > r->small.bytes + r->main.bytes))
		return &r->small;
	return main ? &r->main : NULL;
}

/*
 * The next folio to evict, referenced and locked, after at most SCAN_BATCH looks; *more is false when there is
 * nothing left to look at.
 */
static struct iomap_folio *next_victim(struct iomap_cache *cache, struct budget *b, bool *more)
{
	struct reclaim *r = &cache->reclaim;
	struct iomap_folio *victim = NULL;

	mutex_lock(&r->lock);
	for (unsigned i = 0; i < SCAN_BATCH && !victim; i++) {
		struct folio_queue *q = pick(r, b);
		uint64_t *left = q == &r->behind ? &b->behind : q == &r->small ? &b->small : &b->main;

		*more = q != NULL;
		if (!q)
			break;
		*left -= min_u64(*left, folio_bytes(frame(cache, q->tail)));
		victim = examine(cache, q);
	}
	mutex_unlock(&r->lock);
	return victim;
}

/* Frees about @want bytes of clean folios; returns what it freed. */
static uint64_t shrink(struct iomap_cache *cache, uint64_t want)
{
	struct reclaim *r = &cache->reclaim;
	struct budget b;
	uint64_t freed = 0;
	bool more = true;

	mutex_lock(&r->lock);
	b.behind = r->behind.bytes;     /* what is not dropped moves on to small, from there to main */
	b.small = 2 * (r->small.bytes + r->behind.bytes);
	b.main = 2 * (r->main.bytes + r->small.bytes + r->behind.bytes);
	mutex_unlock(&r->lock);
	while (freed < want && more) {
		struct iomap_folio *victim = next_victim(cache, &b, &more);
		uint64_t bytes;

		if (!victim)
			continue;
		bytes = folio_bytes(victim);
		if (evict(cache, victim))
			freed += bytes;
	}
	return freed;
}

/* --- drop behind ------------------------------------------------------------------------------------------ */

/* The locked folio is still clean, still not wanted by others, and nobody but the caller holds it. */
static bool may_drop(struct iomap_folio *f)
{
	return folio_mapping(f) && load_relaxed(&f->refs) == 2 && (folio_is_droppable(f) || MUTANT(M_DROP_NO_RECHECK));
}

/* To the behind queue, if it is cached and not there. True: it was not. */
static bool put_behind(struct iomap_cache *cache, struct iomap_folio *f)
{
	struct reclaim *r = &cache->reclaim;
	bool moved;

	mutex_lock(&r->lock);
	moved = folio_flags(f) & (FOLIO_SMALL | FOLIO_MAIN);     /* else it is there, or leaving the cache */
	if (moved) {
		pull(cache, f);
		push(cache, &r->behind, f, FOLIO_BEHIND);
	}
	mutex_unlock(&r->lock);
	return moved;
}

void reclaim_drop_behind_later(struct mapping *m, struct iomap_folio *f)
{
	struct iomap_cache *cache = cache_of(m);
	struct reclaim *r = &cache->reclaim;

	if (!folio_is_droppable(f) || MUTANT(M_BEHIND_FORGOTTEN) || !put_behind(cache, f))
		return;
	mutex_lock(&r->thread_lock);
	r->behind_delay_ns = BEHIND_FIRST_NS;
	if (!r->behind_wanted) {
		r->behind_wanted = true;
		cond_signal(&r->thread_cond);
	}
	mutex_unlock(&r->thread_lock);
}

void reclaim_drop_behind(struct mapping *m, struct iomap_folio *f)
{
	struct iomap_cache *cache = cache_of(m);
	bool dropped = false;

	if (!folio_is_droppable(f))
		return;
	if (load_relaxed(&f->refs) == 2 && folio_trylock(f)) {
		dropped = may_drop(f);
		if (dropped)
			mapping_remove(m, f);
		folio_unlock(&cache->zone, f);
	}
	if (!dropped)
		reclaim_drop_behind_later(m, f);
}

/*
 * The folio at the tail of the behind queue, referenced and locked; or NULL: it was busy and is at the head now (*@busy), or it is
 * none of this queue's any more. The queue's lock held.
 */
static struct iomap_folio *next_behind(struct iomap_cache *cache, bool *busy)
{
	struct iomap_folio *f = frame(cache, cache->reclaim.behind.tail);
	bool droppable = folio_is_droppable(f) || (MUTANT(M_DROP_NO_RECHECK) && folio_flags(f) & FOLIO_DROPBEHIND);

	if (droppable && folio_tryget(f)) {
		if (load_relaxed(&f->refs) == 2 && folio_trylock(f))
			return f;
		sub_acq_rel(&f->refs, 1);       /* not the last: the tree holds another while it is queued */
	}
	pull(cache, f);
	if (droppable)
		push(cache, &cache->reclaim.behind, f, FOLIO_BEHIND);
	else    /* its completion brings it back, or it has become an ordinary one */
		push(cache, &cache->reclaim.small, f, FOLIO_SMALL);
	*busy |= droppable;
	return NULL;
}

/* Once through the queue. True: some folio was busy. */
static bool drop_queued(struct iomap_cache *cache)
{
	struct reclaim *r = &cache->reclaim;
	bool busy = false;
	uint64_t left;

	mutex_lock(&r->lock);
	left = r->behind.bytes;
	while (left && r->behind.bytes) {
		uint64_t bytes = folio_bytes(frame(cache, r->behind.tail));
		struct iomap_folio *f = next_behind(cache, &busy);

		left -= min_u64(left, bytes);
		if (!f)
			continue;
		mutex_unlock(&r->lock);
		if (may_drop(f))
			mapping_remove(folio_mapping(f), f);
		else
			busy = true;
		folio_unlock(&cache->zone, f);
		folio_put(&cache->zone, f);
		mutex_lock(&r->lock);
	}
	mutex_unlock(&r->lock);
	return busy;
}

/* --- callers ---------------------------------------------------------------------------------------------- */

/* Is something being read or written, or dirty and worth writing? Then memory will come free. */
static bool movable(struct iomap_cache *cache)
{
	int64_t dirty;
	bool some;

	mutex_lock(&cache->inode_lock);
	dirty = load_relaxed(&cache->sums.level[WB_DIRTY]);
	some = dirty > load_relaxed(&cache->sums.level[WB_FAILED]);
	list_for_each(it, &cache->wbs)
		some |= wb_is_busy(list_entry(it, struct wb, all));
	mutex_unlock(&cache->inode_lock);
	return some;
}

/* Writes the oldest dirty data and waits for something to complete. */
static void write_and_wait(struct iomap_cache *cache, struct wb *wb, uint64_t bytes)
{
	uint64_t seen = wb_completions(wb);

	mutex_lock(&cache->inode_lock);
	list_for_each(it, &cache->wbs) {
		struct wb *each = list_entry(it, struct wb, all);

		if (wb_level(each, WB_DIRTY))
			flusher_request(each, bytes);
	}
	mutex_unlock(&cache->inode_lock);
	wb_wait_completion(wb, seen, plat_now_ns() + WAIT_ROUND_NS / 10);
}

static int memory_short(struct mapping *m, unsigned order, bool may_wait)
{
	struct iomap_cache *cache = cache_of(m);
	struct task *task = cache_task(cache);
	uint64_t bytes = PAGE_BYTES << order, start = plat_now_ns(), written = load_relaxed(&cache->sums.total[WB_WRITTEN]);

	for (;;) {
		uint64_t now;

		if (shrink(cache, max_u64(bytes, SCAN_BATCH * PAGE_BYTES)))
			return 0;
		if (!order && arena_free_bytes(&cache->zone.arena) >= bytes)
			return 0;       /* somebody else freed some */
		if (!may_wait || task_is_cleaning(task))
			return -ENOMEM;
		now = load_relaxed(&cache->sums.total[WB_WRITTEN]);
		if (now != written) {   /* it moves */
			written = now;
			start = plat_now_ns();
		}
		if (plat_now_ns() - start > WAIT_MOST_NS || !movable(cache))
			return -ENOMEM;
		write_and_wait(cache, m->wb, max_u64(bytes, UINT64_C(1) << 20));
	}
}

static void memory_low(struct mapping *m)
{
	struct reclaim *r = &cache_of(m)->reclaim;

	mutex_lock(&r->thread_lock);
	if (!r->wanted) {
		r->wanted = true;
		cond_signal(&r->thread_cond);
	}
	mutex_unlock(&r->thread_lock);
}

const struct mapping_ops reclaim_mapping_ops = {
	.added = added, .removed = removed, .memory_short = memory_short, .memory_low = memory_low,
};

/* --- the background thread -------------------------------------------------------------------------------- */

/* thread_lock held, dropped meanwhile. Each is offered once; false: some device has no room. */
static bool offer_shorts(struct reclaim *r)
{
	struct list batch;
	bool all = true;

	list_init(&batch);
	list_splice_tail(&batch, &r->short_ioends);
	while (!list_empty(&batch)) {
		struct ioend *io = list_first(&batch, struct ioend, node);

		list_del(&io->node);
		mutex_unlock(&r->thread_lock);
		if (ioend_resubmit(io))
			io = NULL;
		mutex_lock(&r->thread_lock);
		if (io) {
			list_add_tail(&r->short_ioends, &io->node);
			all = false;
		}
	}
	return all;
}

static void reclaim_main(void *arg)
{
	struct iomap_cache *cache = arg;
	struct reclaim *r = &cache->reclaim;
	uint64_t again = 0;             /* when to look at busy folios that are to be dropped; 0: there are none */

	cache_thread_begin(cache);
	mutex_lock(&r->thread_lock);
	while (!r->stop) {
		if (!list_empty(&r->short_ioends) && !offer_shorts(r))
			cond_wait_until(&r->thread_cond, &r->thread_lock, plat_now_ns() + OFFER_AGAIN_NS);
		if (r->behind_wanted) {
			bool busy;

			r->behind_wanted = false;
			mutex_unlock(&r->thread_lock);
			busy = drop_queued(cache);
			mutex_lock(&r->thread_lock);
			if (busy && !again)
				again = plat_now_ns() + r->behind_delay_ns;
			continue;
		}
		if (!r->wanted) {
			if (!list_empty(&r->short_ioends))
				continue;
			if (!again) {
				cond_wait(&r->thread_cond, &r->thread_lock);
			} else if (plat_now_ns() < again) {
				cond_wait_until(&r->thread_cond, &r->thread_lock, again);
			} else {
				again = 0;
				r->behind_wanted = true;
				r->behind_delay_ns = min_u64(2 * r->behind_delay_ns, BEHIND_MOST_NS);
			}
			continue;
		}
		r->wanted = false;
		mutex_unlock(&r->thread_lock);
		for (uint64_t free; (free = arena_free_bytes(&cache->zone.arena)) < r->high_bytes; )
			if (!shrink(cache, r->high_bytes - free))
				break;  /* nothing clean: the flusher's business, not ours */
		mutex_lock(&r->thread_lock);
	}
	mutex_unlock(&r->thread_lock);
	cache_thread_end(cache);
}

void reclaim_init(struct iomap_cache *cache)
{
	struct reclaim *r = &cache->reclaim;
	uint64_t bytes = (uint64_t)cache->zone.arena.nr_frames * PAGE_BYTES;

	mutex_init(&r->lock, LOCK_RECLAIM);
	mutex_init(&r->thread_lock, LOCK_LEAF);
	cond_init(&r->thread_cond);
	list_init(&r->short_ioends);
	r->behind = r->small = r->main = (struct folio_queue){ FRAME_NONE, FRAME_NONE, 0 };
	r->low_bytes = bytes / 64;
	r->high_bytes = bytes / 32;
}

int reclaim_start(struct iomap_cache *cache)
{
	int ret = thread_create(&cache->reclaim.thread, "iomap-reclaim", reclaim_main, cache);

	cache->reclaim.has_thread = !ret;
	return ret;
}

void reclaim_offer_again(struct iomap_cache *cache, struct ioend *io)
{
	struct reclaim *r = &cache->reclaim;

	mutex_lock(&r->thread_lock);
	list_add_tail(&r->short_ioends, &io->node);
	cond_signal(&r->thread_cond);
	mutex_unlock(&r->thread_lock);
}

void reclaim_stop(struct iomap_cache *cache)
{
	struct reclaim *r = &cache->reclaim;

	if (!r->has_thread)
		return;
	mutex_lock(&r->thread_lock);
	r->stop = true;
	cond_signal(&r->thread_cond);
	mutex_unlock(&r->thread_lock);
	thread_join(&r->thread);
	r->has_thread = false;
}

void reclaim_fini(struct iomap_cache *cache)
{
	mutex_fini(&cache->reclaim.lock);
	mutex_fini(&cache->reclaim.thread_lock);
	cond_fini(&cache->reclaim.thread_cond);
}

uint64_t reclaim_queued_bytes(struct iomap_cache *cache)
{
	uint64_t bytes;

	mutex_lock(&cache->reclaim.lock);
	bytes = cache->reclaim.behind.bytes + cache->reclaim.small.bytes + cache->reclaim.main.bytes;
	mutex_unlock(&cache->reclaim.lock);
	return bytes;
}

int reclaim_check(struct iomap_cache *cache, char *why, size_t why_len)
{
	struct folio_queue *queues[] = { &cache->reclaim.small, &cache->reclaim.main, &cache->reclaim.behind };
	static const uint32_t flags[] = { FOLIO_SMALL, FOLIO_MAIN, FOLIO_BEHIND };
	int ret = 0;

	mutex_lock(&cache->reclaim.lock);
	for (unsigned i = 0; !ret && i < ARRAY_SIZE(queues); i++) {
		uint64_t bytes = 0;
		uint32_t prev = FRAME_NONE;

		for (uint32_t n = queues[i]->head; n != FRAME_NONE; prev = n, n = frame(cache, n)->next) {
			struct iomap_folio *f = frame(cache, n);

			bytes += folio_bytes(f);
			if (f->prev != prev || (folio_flags(f) & FOLIO_QUEUED) != flags[i]) {
				snprintf(why, why_len, "reclaim: frame %u is linked or flagged wrongly on queue %u", n, i);
				ret = -EUCLEAN;
				break;
			}
		}
		if (!ret && (bytes != queues[i]->bytes || queues[i]->tail != prev)) {
			snprintf(why, why_len, "reclaim: queue %u holds %llu bytes, says %llu", i, (unsigned long long)bytes,
				 (unsigned long long)queues[i]->bytes);
			ret = -EUCLEAN;
		}
	}
	mutex_unlock(&cache->reclaim.lock);
	return ret;
}
