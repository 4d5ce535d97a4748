/*
 * sync.c - what makes a file durable, and what becomes of it when that fails
 *
 * fsync is: write what is dirty and wait (writeback.c), set a size that no block carries, then one flush of the device. Flushes are
 * shared: a caller whose writes had completed before a flush started is covered by it.
 *
 *      unflushed --flush begins--> flushing --it ends well--> nothing
 *          ^                          |
 *      completed writes               +--it fails--> lost, and fsync says so until iomap_resolve()
 *
 * A flush that fails takes with it all that the device had when it failed. That is more than it was to cover: writes that we hear
 * of later were perhaps complete by then. So each request remembers how many flushes had failed when it was made.
 *
 * Invariants: a write's range is in unflushed before its blocks leave flight; a range leaves lost only when its bytes are
 *             written and flushed again, or given up.
 * Locking:    inode->flush_lock over the flush; no short lock.
 * Kernel:     fs/sync.c, file_write_and_wait_range(). Differs: failed blocks stay dirty, a failed flush is not forgotten.
 */
#include <errno.h>
#include "flusher.h"
#include "iter.h"
#include "mutant.h"
#include "space.h"
#include "sync.h"
#include "truncate.h"
#include "writeback.h"

#define RETRY_ROUNDS 4                  /* of iomap_resolve(), while flushes of others fail */

/* What a failed flush of a device takes with it, of one file on it. */
static void note_lost(struct inode *inode, int error)
{
	store_release(&inode->flush_error, error);
	add_acq_rel(&inode->flush_failures, 1); /* before the looks below; pairs with inode_note_written() */
	rangeset_reserve(&inode->lost, rangeset_count(&inode->flushing) + rangeset_count(&inode->unflushed));
	if (!MUTANT(M_LOST_NOT_KEPT))
		rangeset_move(&inode->lost, &inode->flushing);
	rangeset_move(&inode->lost, &inode->unflushed);         /* the device may have had these, too, when it failed */
	errseq_set(&inode->wb_err, error);
}

/* Engines keep many files on one device: its failed flush is the others' as well. */
static void tell_others(struct inode *inode, int error)
{
	struct inode *other = NULL;

	while (inode->mapped && (other = inode_next_late(inode->cache, other)))
		if (other != inode && other->device == inode->device && !inode_is_durable(other))
			note_lost(other, error);
}

static int flush_once(struct inode *inode)
{
	uint64_t number = add_acq_rel(&inode->flushes_started, 1) + 1;
	bool size = exchange_acq_rel(&inode->size_unflushed, false);
	struct device_call call;
	int ret;

	rangeset_reserve(&inode->flushing, rangeset_count(&inode->unflushed));
	rangeset_move(&inode->flushing, &inode->unflushed);
	call = cache_device_begin(inode->cache);
	ret = wb_flush(inode->wb, inode->device);
	cache_device_end(call);
	if (!ret) {
		rangeset_remove(&inode->flushing, 0, UINT64_MAX);
		inode->last_good_flush = number;
		return 0;
	}
	if (size)
		store_release(&inode->size_unflushed, true);
	note_lost(inode, ret);
	tell_others(inode, ret);
	return ret;
}

/* flush_lock held: the next flush, whatever came of those before. */
static int flush_locked(struct inode *inode)
{
	int ret;

	store_release(&inode->flush_running, true);     /* before anything stops being unflushed; pairs with inode_is_durable() */
	ret = flush_once(inode);
	store_release(&inode->flush_running, false);
	return ret;
}

int sync_flush(struct inode *inode)
{
	uint64_t ticket = load_acquire(&inode->flushes_started);       /* our writes have completed: a later flush covers them */
	int ret;

	if (MUTANT(M_FLUSH_JOINED_LATE) && !rangeset_empty(&inode->flushing))
		ticket--;
	mutex_lock(&inode->flush_lock);
	ret = MUTANT(M_FLUSH_ERROR_ONCE) ? 0 : inode_flush_error(inode);
	if (!ret && inode->last_good_flush <= ticket)
		ret = flush_locked(inode);
	mutex_unlock(&inode->flush_lock);
	inode_put_late(inode->cache);
	return ret;
}

void sync_forget(struct inode *inode)
{
	mutex_lock(&inode->flush_lock);
	rangeset_remove(&inode->unflushed, 0, UINT64_MAX);
	rangeset_remove(&inode->lost, 0, UINT64_MAX);
	store_release(&inode->size_unflushed, false);
	store_release(&inode->flush_error, 0);
	mutex_unlock(&inode->flush_lock);
}

/* The device's size follows a size that no dirty block carries: a file grown by a hole, or cut inside one. */
static int sync_size(struct inode *inode, uint64_t wanted)
{
	int ret = 0;

	if (!inode_ends_device(inode) || (device_size(inode->device) >= wanted && !device_size_unsure(inode->device)))
		return 0;
	mutex_lock(&inode->extend_lock);
	if (!MUTANT(M_SIZE_GROWN_BACK))
		wanted = min_u64(wanted, inode_size(inode));    /* it was cut meanwhile; only under this lock */
	if (device_size(inode->device) < wanted) {
		writeback_settle_end(inode);
		ret = inode_set_device_size(inode, wanted);
	} else {
		ret = inode_settle_device_size(inode);
	}
	mutex_unlock(&inode->extend_lock);
	return ret;
}

/* The bytes are safe; an engine now makes sure that they are found. */
static int commit(struct inode *inode, bool datasync)
{
	int ret = inode->ops->commit ? inode->ops->commit(inode->ops_priv, datasync) : 0;

	return ret < 0 ? ret : 0;
}

void sync_closed(struct inode *inode)
{
	/* Tried only: who holds them may wait for the thread that calls this. */
	if (rwsem_trylock(&inode->rwsem)) {
		if (mutex_trylock(&inode->extend_lock)) {
			uint64_t size = inode_size(inode);

			if (inode_ends_device(inode) && !inode_is_clean(inode) && !mapping_is_marked(&inode->mapping, XA_MARK_DIRTY)) {
				writeback_settle_end(inode);
				inode_set_device_size(inode, size);
			}
			space_trim(inode);
			mutex_unlock(&inode->extend_lock);
		}
		rwsem_unlock(&inode->rwsem);
	}
	if (!inode_is_durable(inode) && !sync_flush(inode))     /* an error stays with the inode, and keeps it here */
		commit(inode, false);
}

int sync_inode(struct inode *inode, uint64_t start, uint64_t end, bool datasync)
{
	uint64_t size = inode_size(inode);
	bool skip = MUTANT(M_FSYNC_NO_FLUSH) && !mapping_is_marked(&inode->mapping, XA_MARK_DIRTY);
	int ret = writeback_range_sync(inode, start, end), flushed;

	if (!ret)
		ret = sync_size(inode, min_u64(size, end));
	flushed = skip ? 0 : sync_flush(inode);
	if (!ret && !flushed)
		ret = commit(inode, datasync);
	flusher_check_clean(inode);
	return flushed ? flushed : ret;
}

int sync_name(struct inode *inode)
{
	int ret = 0;

	mutex_lock(&inode->flush_lock);
	if (inode->created)
		ret = plat_fsync_dir_of(inode->path);
	if (!ret)
		inode->created = false;
	mutex_unlock(&inode->flush_lock);
	return ret;
}

/* --- iomap_resolve() -------------------------------------------------------------------------------------- */

/*
 * Makes an uptodate block of a locked folio dirty again. An engine is asked as before any write: what was lost may be shared by now, or
 * a hole that lies between. False: it has no place for it. rwsem held, exclusive where an engine maps.
 */
static bool redirty_block(struct inode *inode, struct iomap_folio *f, unsigned blk)
{
	struct mapping *m = &inode->mapping;
	uint64_t bs = ifs_block_bytes(&m->geom);
	struct iter it;

	if (!inode->mapped) {
		mapping_redirty(m, f, blk, 1);
		return true;
	}
	iter_init(&it, inode, folio_pos(f) + blk * bs, bs, IOMAP_WRITE);
	while (iter_next(&it) > 0) {
		if (!iter_valid(&it))
			continue;
		if (it.map.type == IOMAP_INLINE) {      /* nothing of that was ever on the device */
			it.left = 0;
			continue;
		}
		mapping_redirty(m, f, blk, 1);
		iter_advance(&it, iter_length(&it));
	}
	return !it.left;
}

/* Makes what is cached of [start, end) dirty again and adds it to @again. */
static void redirty_cached(struct inode *inode, uint64_t start, uint64_t end, struct rangeset *again)
{
	struct mapping *m = &inode->mapping;
	uint64_t bs = ifs_block_bytes(&m->geom);
	pgoff_t at = start >> PAGE_SHIFT, last = (end - 1) >> PAGE_SHIFT;
	struct iomap_folio *f;

	end = min_u64(end, round_up(inode_size(inode), bs));
	while (at <= last && (f = mapping_next(m, &at, last))) {
		folio_lock(m->zone, f);
		at += folio_pages(f);
		for (unsigned b = 0; folio_mapping(f) == m && b < ifs_blocks(f, &m->geom); b++) {
			uint64_t pos = folio_pos(f) + b * bs;

			if (pos + bs <= start || pos >= end || !ifs_range_uptodate(f, &m->geom, b, 1))
				continue;
			if (!redirty_block(inode, f, b))
				continue;
			rangeset_reserve(again, 1);
			rangeset_add(again, pos, pos + bs);
		}
		folio_unlock(m->zone, f);
		folio_put(m->zone, f);
	}
	flusher_mark_dirty(inode);
}

static bool lost_in(struct inode *inode, uint64_t start, uint64_t end)
{
	struct range r;

	return rangeset_next(&inode->lost, start, &r) && r.start < end;
}

/*
 * One round: writes what is cached of the lost ranges again, and flushes. Off the list goes what no flush has failed since: another
 * caller's may have taken these very writes with it. *@again: that happened, although ours ended well.
 */
static int retry_once(struct inode *inode, uint64_t start, uint64_t end, uint64_t size, bool *again)
{
	uint64_t failures = load_acquire(&inode->flush_failures);       /* before anything is written */
	struct rangeset written;
	struct range r;
	int ret, flushed;

	rangeset_init(&written, &inode->cache->zone.mem, RANGESET_SUBSET, RANGESET_MAX);
	(inode->mapped ? rwsem_lock : rwsem_lock_shared)(&inode->rwsem);        /* as everybody who dirties: who cuts relies on it */
	for (uint64_t at = start; rangeset_next(&inode->lost, at, &r) && r.start < end; at = r.end)
		redirty_cached(inode, max_u64(r.start, start), min_u64(r.end, end), &written);
	(inode->mapped ? rwsem_unlock : rwsem_unlock_shared)(&inode->rwsem);
	ret = writeback_range_sync(inode, start, end);
	if (!ret)
		ret = sync_size(inode, min_u64(size, end));     /* a hole at the end is part of the range */
	mutex_lock(&inode->flush_lock);
	flushed = flush_locked(inode);
	*again = !flushed && !ret && load_acquire(&inode->flush_failures) != failures && !MUTANT(M_RETRY_OUTRUN);
	if (!flushed && !ret && !*again) {
		for (uint64_t at = 0; rangeset_next(&written, at, &r); at = r.end)
			rangeset_remove(&inode->lost, r.start, r.end);
	}
	if (!flushed)
		store_relaxed(&inode->flush_error, 0);  /* what is still lost speaks for itself */
	mutex_unlock(&inode->flush_lock);
	inode_put_late(inode->cache);
	rangeset_fini(&written);
	return ret ? ret : flushed;
}

int sync_retry(struct inode *inode, uint64_t start, uint64_t end)
{
	uint64_t size = inode_size(inode);      /* what it grows to meanwhile is not written by this */
	unsigned rounds = 0;
	bool again;
	int ret;

	writeback_range_sync(inode, start, end);        /* what is in flight may turn out to be lost; its errors are seen below */
	do
		ret = retry_once(inode, start, end, size, &again);
	while (again && ++rounds < RETRY_ROUNDS);
	if (!ret && lost_in(inode, start, end))
		ret = -EIO;
	flusher_check_clean(inode);
	return ret;
}

void sync_discard(struct inode *inode, uint64_t start, uint64_t end)
{
	struct mapping *m = &inode->mapping;
	struct range r;

	discard_failed(m, start, end);
	for (uint64_t at = start; rangeset_next(&inode->lost, at, &r) && r.start < end; at = r.end)
		forget_clean(m, max_u64(r.start, start), min_u64(r.end, end));
	mutex_lock(&inode->flush_lock);
	rangeset_remove(&inode->lost, start, end);
	if (rangeset_empty(&inode->lost))
		store_relaxed(&inode->flush_error, 0);
	mutex_unlock(&inode->flush_lock);
	flusher_check_clean(inode);
}
