/*
 * fallocate.c - space asked for, given back, or turned into zeros
 *
 * A range is whole blocks with a part of a block at either end. The parts are zeroed through the cache. The whole blocks are the
 * device's to punch or to zero; what the cache holds of them goes. Not a byte is written for them, and nothing of them is charged
 * any more:
 *
 *      |  edge  |-------- whole blocks --------|  edge  |
 *       zeroed,  device told, cache cut out     zeroed,
 *       dirty                                   dirty
 *
 * No dirty block may reach the device after it was told. So folios that have one there are locked, idle, over the call, 64 at
 * a time; after it they are clean inside the range before their locks are let go. Where the device refuses, nothing has changed.
 * Clean folios need no such care: with the rwsem held nobody dirties them, and they are thrown away afterwards, so that a read
 * which was under way leaves nothing old behind.
 *
 * Where an engine maps (<iomap/ops.h>) its fallocate() stands for the device's.
 *
 * What a device cannot do is done with zeros written through the cache: ZERO_RANGE everywhere, PUNCH_HOLE where there is no
 * file system that has an opinion of it (a device of fixed size, or without any allocate operation).
 *
 * Invariants: a range given back is not in inode->allocated; the size moves last, by buffered_grow().
 * Locking:    rwsem exclusive, invalidate_lock exclusive over the cut, folio locks in ascending order over the device's call.
 * Kernel:     vfs_fallocate(), a file system's punch and zero range. Differs: dirty blocks that go are not written first.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include "buffered-write.h"
#include "fallocate.h"
#include "flusher.h"
#include "mutant.h"
#include "space.h"
#include "truncate.h"
#include "writeback.h"

#define LOCKED_MOST 64
#define PUNCH (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE)

/* The size is the device's, once and for all. */
static bool is_fixed(const struct inode *inode) { return inode->fixed_size && !inode->mapped; }

/* The blocks of [pos, end) that go as a whole. Bytes beyond the size are zeros in any case, so a block they end in counts. */
static struct range whole_blocks(const struct inode *inode, uint64_t pos, uint64_t end)
{
	uint64_t bs = ifs_block_bytes(&inode->mapping.geom), size = inode_size(inode);
	struct range r = { round_down(pos, bs), end >= size ? round_up(end, bs) : round_down(end, bs) };

	if (r.start < pos && r.start < size)
		r.start += bs;
	r.end = min_u64(r.end, is_fixed(inode) ? size : INT64_MAX);
	if (r.end < r.start)
		r.end = r.start;
	return r;
}

/*
 * Locks, in ascending order, folios of blocks [start, *end) that are dirty, with nothing of them in flight. No more than LOCKED_MOST:
 * *end becomes the end of the last then. rwsem exclusive, so none is dirtied meanwhile.
 */
static unsigned lock_dirty(struct mapping *m, uint64_t start, uint64_t *end, struct iomap_folio **locked)
{
	pgoff_t at = start >> PAGE_SHIFT, last = (*end - 1) >> PAGE_SHIFT;
	struct iomap_folio *f;
	unsigned nr = 0;

	while (at <= last && (f = mapping_next(m, &at, last))) {
		if (!(folio_flags(f) & (FOLIO_DIRTY | FOLIO_WRITEBACK)) || MUTANT(M_PUNCH_NO_LOCK)) {
			at += folio_pages(f);
			folio_put(m->zone, f);
			continue;
		}
		folio_lock(m->zone, f);
		truncate_wait_writeback(m, f);
		if (folio_mapping(f) == m && folio_is_dirty(f)) {
			at = folio_index(f) + folio_pages(f);
			locked[nr++] = f;
			if (nr < LOCKED_MOST)
				continue;
			*end = min_u64(*end, at << PAGE_SHIFT);
			break;
		}
		folio_unlock(m->zone, f);       /* clean by now, perhaps gone: look again */
		folio_put(m->zone, f);
	}
	return nr;
}

/* The device's call, or the engine's where it maps. */
static int allocate_mode(struct inode *inode, uint64_t pos, uint64_t len, int mode)
{
	if (!inode->mapped)
		return device_allocate(inode->device, pos, len, mode);
	/* An engine makes no zeros of blocks that it keeps. */
	if (!inode->ops->fallocate || (mode & FALLOC_FL_ZERO_RANGE))
		return -EOPNOTSUPP;
	return inode->ops->fallocate(inode->ops_priv, mode, pos, len);
}

/* Blocks @r are punched or zeroed by the device, and leave the cache. rwsem and invalidate_lock exclusive. */
static int tell_device(struct inode *inode, struct range r, int mode)
{
	struct mapping *m = &inode->mapping;
	struct iomap_folio *locked[LOCKED_MOST];

	for (uint64_t at = r.start, end; at < r.end; at = end) {
		unsigned nr;
		int ret;

		end = r.end;
		nr = lock_dirty(m, at, &end, locked);
		if (mode & FALLOC_FL_PUNCH_HOLE)
			space_punched(inode, at, end);
		ret = allocate_mode(inode, at, end - at, mode | FALLOC_FL_KEEP_SIZE);
		for (unsigned i = 0; i < nr; i++) {
			if (!ret)
				truncate_trim_range(m, locked[i], at, end);
			folio_unlock(m->zone, locked[i]);
			folio_put(m->zone, locked[i]);
		}
		if (ret)
			return ret == -ENOSYS ? -EOPNOTSUPP : ret;
		store_release(&inode->size_unflushed, true);
		truncate_range(m, at, end);
		if (mode & FALLOC_FL_ZERO_RANGE)
			space_learned(inode, at, end);
	}
	return 0;
}

/* Nobody below has an opinion of holes: zeros are as good. */
static bool punched_by_zeros(const struct inode *inode)
{
	return !inode->mapped && (inode->fixed_size || !device_bottom(inode->device)->ops->allocate);
}

/* Parts of blocks at the edges of [pos, end), as far as they lie inside the size; @whole is what lies between them. */
static int zero_edges(struct inode *inode, uint64_t pos, uint64_t end, struct range whole)
{
	uint64_t bs = ifs_block_bytes(&inode->mapping.geom), stop = min_u64(end, inode_size(inode));
	int ret;

	if (pos >= stop)
		return 0;
	ret = pos < whole.start || whole.start == whole.end ? buffered_zero_edge(inode, pos, min_u64(stop, round_down(pos, bs) + bs)) : 0;
	if (!ret && stop % bs && stop > whole.end && round_down(stop, bs) > pos)
		ret = buffered_zero_edge(inode, round_down(stop, bs), stop);
	return ret;
}

/*
 * An engine hears of a grown file's size when its last block has been written. That block is about to go unwritten: so it is written
 * first. rwsem exclusive.
 */
static int settle_size(struct inode *inode, struct range whole)
{
	uint64_t size = inode_size(inode), last = size ? round_down(size - 1, ifs_block_bytes(&inode->mapping.geom)) : 0;

	return inode->mapped && size && whole.start <= last && last < whole.end ? writeback_range_sync(inode, last, size) : 0;
}

/* PUNCH_HOLE and ZERO_RANGE. *@by_zeros: nothing was done, zeros are to be written instead. */
static int clear_range(struct inode *inode, int mode, uint64_t pos, uint64_t end, bool *by_zeros)
{
	struct mapping *m = &inode->mapping;
	struct range whole;
	int ret = 0;

	*by_zeros = false;
	rwsem_lock(&inode->rwsem);
	whole = whole_blocks(inode, pos, end);
	ret = settle_size(inode, whole);
	if (!ret && whole.start < whole.end) {
		rwsem_lock(&m->invalidate_lock);
		ret = tell_device(inode, whole, mode);
		/* Past the largest size that the file system has there is nothing to be punched. */
		if (ret == -EFBIG && (mode & FALLOC_FL_PUNCH_HOLE) && end > inode_size(inode)) {
			whole.end = round_up(inode_size(inode), ifs_block_bytes(&m->geom));
			ret = whole.start < whole.end ? tell_device(inode, whole, mode) : 0;
		}
		rwsem_unlock(&m->invalidate_lock);
	}
	if (ret == -EOPNOTSUPP)
		*by_zeros = !(mode & FALLOC_FL_PUNCH_HOLE) || punched_by_zeros(inode);
	if (!ret)
		ret = zero_edges(inode, pos, end, whole);
	if (!ret && (mode & FALLOC_FL_ZERO_RANGE)) {
		if (!(mode & FALLOC_FL_KEEP_SIZE) && end > inode_size(inode))
			ret = buffered_grow(inode, end);
		else if (end > inode_size(inode))
			space_keep(inode, end);
	}
	if (!*by_zeros)
		inode_touch(inode);
	rwsem_unlock(&inode->rwsem);
	flusher_check_clean(inode);
	return ret;
}

static int grow_to(struct inode *inode, uint64_t end)
{
	int ret = 0;

	rwsem_lock(&inode->rwsem);
	if (end > inode_size(inode))
		ret = buffered_grow(inode, end);
	rwsem_unlock(&inode->rwsem);
	return ret;
}

/* The engine knows what is allocated. It hears of whole blocks, and of the size by the size. */
static int allocate_mapped(struct inode *inode, int mode, uint64_t pos, uint64_t end)
{
	uint64_t bs = ifs_block_bytes(&inode->mapping.geom), start = round_down(pos, bs);
	int ret;

	rwsem_lock(&inode->rwsem);
	ret = allocate_mode(inode, start, min_u64(round_up(end, bs), INT64_MAX) - start, FALLOC_FL_KEEP_SIZE);
	if (!ret && !(mode & FALLOC_FL_KEEP_SIZE) && end > inode_size(inode))
		ret = buffered_grow(inode, end);
	if (!ret)
		inode_touch(inode);
	rwsem_unlock(&inode->rwsem);
	return ret;
}

static int allocate(struct inode *inode, int mode, uint64_t pos, uint64_t end)
{
	int ret;

	if (inode->mapped)
		return allocate_mapped(inode, mode, pos, end);
	rwsem_lock(&inode->rwsem);
	ret = space_allocate(inode, pos, end);
	if (!ret && end > inode_size(inode)) {
		if (!(mode & FALLOC_FL_KEEP_SIZE))
			ret = buffered_grow(inode, end);
		else
			space_keep(inode, end);
	}
	if (!ret)
		inode_touch(inode);
	rwsem_unlock(&inode->rwsem);
	return ret;
}

int fallocate_range(struct iomap_file *file, int mode, uint64_t pos, uint64_t end)
{
	struct inode *inode = file->inode;
	bool by_zeros;
	int ret;

	/* Space that a device of fixed size has is there; more there is not. */
	if (is_fixed(inode) && end > inode_size(inode) && mode != PUNCH && mode != (FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE))
		return -ENOSPC;
	if (!(mode & ~FALLOC_FL_KEEP_SIZE))
		return is_fixed(inode) ? 0 : allocate(inode, mode, pos, end);
	ret = clear_range(inode, mode, pos, end, &by_zeros);
	if (!by_zeros)
		return ret;
	ret = buffered_zero_steps(file, pos, end);
	return ret || (mode & FALLOC_FL_KEEP_SIZE) ? ret : grow_to(inode, end);
}
