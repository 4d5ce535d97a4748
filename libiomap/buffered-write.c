/*
 * buffered-write.c - bytes copied into folios
 *
 * A call is cut into steps of at most 2 MiB. Each pays the throttle with no lock held, takes the inode's rwsem (shared where
 * the step stays inside the file's size, exclusive where it moves it), makes sure of space on the device, and goes folio by
 * folio: find or create it, read the blocks that are covered in part and not uptodate, copy, mark uptodate, mark dirty, raise
 * the size, unlock. Blocks in flight whose request reads this memory in place are waited for first.
 *
 * Invariants: i_size is raised after data, uptodate and dirty bits; a block becomes uptodate only when all its bytes exist;
 *             bytes of an uptodate block past i_size are zero, so growing the file needs no cleaning up in memory.
 * Locking:    rwsem, one folio lock; the throttle is paid with no lock held, space is made under rwsem.
 * Kernel:     iomap_file_buffered_write(). Differs: writers inside the size run in parallel; at most two blocks a folio are
 *             read, each for itself, never those that will be covered whole.
 */
#include <errno.h>
#include <string.h>
#include "buffered-write.h"
#include "fill.h"
#include "flusher.h"
#include "mutant.h"
#include "space.h"
#include "throttle.h"
#include "truncate.h"
#include "writeback.h"

#define STEP_BYTES (UINT64_C(2) << 20)

/* Is some block of the range in a request that reads the folio's memory? */
static bool must_wait(struct mapping *m, struct iomap_folio *f, unsigned first, unsigned nr)
{
	return folio_is_writeback(f) && folio_has_stable_io(f) && ifs_any(f, &m->geom, IFS_INFLIGHT, first, nr);
}

struct stable_wait { struct mapping *m; struct iomap_folio *f; };

static bool no_stable_io(void *arg)
{
	struct stable_wait *w = arg;

	return !folio_is_writeback(w->f) || !folio_has_stable_io(w->f);
}

/* The locked folio that holds or will hold @pos: an old one, or a new one large enough for @len. */
static int get_folio(struct inode *inode, uint64_t pos, uint64_t len, bool nowait, struct iomap_folio **out)
{
	struct mapping *m = &inode->mapping;
	unsigned order = len > PAGE_BYTES ? log2_floor(len) - PAGE_SHIFT : 0;
	int ret;

	do {
		if (nowait) {
			ret = mapping_get_trylocked(m, pos >> PAGE_SHIFT, out);
			if (ret)
				return ret;
		} else {
			*out = mapping_get_locked(m, pos >> PAGE_SHIFT);
		}
		if (*out) {
			folio_mark_referenced(*out);
			return 0;
		}
		ret = mapping_create(m, pos >> PAGE_SHIFT, order, MAPPING_WRITE | (nowait ? 0 : MAPPING_MAY_WAIT), out);
		if (ret == -ENOMEM && nowait)
			ret = -EAGAIN;
	} while (ret == -EEXIST);
	return ret;
}

/*
 * A block that the write covers in part must hold its other bytes first: from the device if one of them is stored there,
 * else zeros.
 */
static int prepare_block(struct inode *inode, struct iomap_folio *f, unsigned blk, uint64_t from, uint64_t to, bool nowait)
{
	struct mapping *m = &inode->mapping;
	uint64_t bs = ifs_block_bytes(&m->geom), b0 = blk * bs, b1 = b0 + bs, pos = folio_pos(f), stored;

	if ((from <= b0 && to >= b1) || ifs_range_uptodate(f, &m->geom, blk, 1))
		return 0;
	stored = device_size(inode->device);
	stored = stored > pos + b0 ? min_u64(stored - pos, b1) : b0;    /* offset in the folio where stored bytes end */
	if ((from > b0 && stored > b0) || (to < stored)) {
		if (nowait)
			return -EAGAIN;
		return fill_blocks(m, inode->device, f, blk, 1);
	}
	if (from > b0)
		folio_zero(folio_addr(m->zone, f) + b0, from - b0);
	if (to < b1)
		folio_zero(folio_addr(m->zone, f) + max_u64(to, b0), b1 - max_u64(to, b0));
	return 0;       /* not uptodate before the copy is done */
}

static uint64_t account(struct inode *inode, struct iomap_folio *f, unsigned first, unsigned nr)
{
	struct task *task = cache_task(inode->cache);
	uint64_t charged = mapping_set_dirty(&inode->mapping, f, first, nr);

	flusher_mark_dirty(inode);
	if (MUTANT(M_CHARGED_AGAIN))
		charged = nr * ifs_block_bytes(&inode->mapping.geom);
	if (task && charged)
		throttle_dirtied(task, charged);
	else if (charged)
		cache_count_orphan(inode->cache, TASK_DIRTIED_BYTES, charged);
	return charged;
}

/* One folio's part of a step: bytes copied, or -errno. rwsem held; exclusive where pos + len passes the size. */
static ssize_t write_folio(struct inode *inode, struct iov_iter *from, uint64_t pos, uint64_t len, bool nowait)
{
	struct mapping *m = &inode->mapping;
	unsigned first, last;
	struct iomap_folio *f;
	uint64_t off, done;
	int ret;

	for (;;) {
		struct stable_wait w;

		ret = get_folio(inode, pos, len, nowait, &f);
		if (ret)
			return ret;
		off = pos - folio_pos(f);
		len = min_u64(len, folio_bytes(f) - off);
		first = (unsigned)(off >> m->geom.block_shift);
		last = (unsigned)((off + len - 1) >> m->geom.block_shift);
		if (MUTANT(M_WRITE_INTO_FLIGHT) || !must_wait(m, f, first, last - first + 1))
			break;
		folio_unlock(m->zone, f);
		w = (struct stable_wait){ m, f };
		if (!nowait)
			wait_until(&m->zone->waits, f, &f->flags, FOLIO_WAITERS, no_stable_io, &w);
		folio_put(m->zone, f);
		if (nowait)
			return -EAGAIN;
	}
	ret = prepare_block(inode, f, first, off, off + len, nowait);
	if (!ret && last != first)
		ret = prepare_block(inode, f, last, off, off + len, nowait);
	if (ret)
		goto out;

	if (MUTANT(M_UPTODATE_BEFORE_COPY))
		mapping_set_uptodate(m, f, first, last - first + 1);
	if (!MUTANT(M_CONTENT_NOT_COUNTED))
		folio_content_begin(f, off, len);
	for (done = 0; done < len; ) {
		size_t n;
		const void *src = iov_iter_piece(from, (size_t)(len - done), &n);

		folio_copy(folio_addr(m->zone, f) + off + done, src, n);
		iov_iter_advance(from, n);
		done += n;
	}
	if (!MUTANT(M_CONTENT_NOT_COUNTED))
		folio_content_end(f, off, len);
	mapping_set_uptodate(m, f, first, last - first + 1);
	account(inode, f, first, last - first + 1);
	if (pos + len > inode_size(inode))
		inode_set_size(inode, pos + len);
out:
	folio_unlock(m->zone, f);
	folio_put(m->zone, f);
	return ret ? ret : (ssize_t)len;
}

/*
 * The file grows past its last, partial block: the rest of that block must be zeros on the device as well. rwsem exclusive.
 */
static int zero_old_end(struct inode *inode)
{
	struct mapping *m = &inode->mapping;
	uint64_t size = inode_size(inode), bs = ifs_block_bytes(&m->geom);
	struct iomap_folio *f;
	unsigned blk;
	int ret;

	if (!(size & (bs - 1)))
		return 0;
	for (;;) {
		ret = get_folio(inode, size - 1, 1, false, &f);
		if (ret)
			return ret;
		blk = (unsigned)((size - 1 - folio_pos(f)) >> m->geom.block_shift);
		if (!must_wait(m, f, blk, 1))
			break;
		folio_unlock(m->zone, f);
		folio_wait_writeback(m->zone, f);
		folio_put(m->zone, f);
	}
	ret = fill_blocks(m, inode->device, f, blk, 1);
	if (!ret) {
		uint64_t off = size - folio_pos(f), end = (uint64_t)(blk + 1) * bs;

		folio_content_begin(f, off, end - off);
		folio_zero(folio_addr(m->zone, f) + off, end - off);
		folio_content_end(f, off, end - off);
		account(inode, f, blk, 1);
	}
	folio_unlock(m->zone, f);
	folio_put(m->zone, f);
	return ret;
}

/*
 * Not all of a step has room. Space comes in blocks, so fewer blocks may fit; the largest size may lie inside one.
 */
static uint64_t shorter(uint64_t pos, uint64_t len, uint64_t bs, bool bytes)
{
	uint64_t first = bs - pos % bs;

	if (len > first)
		return first + round_down((len - first) / 2, bs);
	return bytes ? len / 2 : 0;
}

/* One step under the rwsem: bytes written, or -errno if none. */
static ssize_t write_step(struct inode *inode, struct iov_iter *from, uint64_t pos, uint64_t len, bool nowait)
{
	uint64_t done = 0;
	int ret;

	if (pos > inode_size(inode)) {
		ret = nowait && inode_size(inode) % ifs_block_bytes(&inode->mapping.geom) ? -EAGAIN : zero_old_end(inode);
		if (ret)
			return ret;
	}
	ret = space_reserve(inode, pos, len);
	while ((ret == -ENOSPC || ret == -EFBIG || ret == -EDQUOT) && len > 1) {
		uint64_t less = shorter(pos, len, ifs_block_bytes(&inode->mapping.geom), ret == -EFBIG);

		if (!less)
			break;
		len = less;
		ret = space_reserve(inode, pos, len);
	}
	if (ret)
		return ret;
	if (MUTANT(M_SIZE_BEFORE_DATA) && pos + len > inode_size(inode))
		inode_set_size(inode, pos + len);
	while (done < len) {
		ssize_t n = write_folio(inode, from, pos + done, len - done, nowait);

		if (n < 0)
			return done ? (ssize_t)done : n;
		done += (uint64_t)n;
	}
	return (ssize_t)done;
}

/* Takes the rwsem as the step [*pos, *pos + len) needs it. 0, or -EAGAIN. */
static int lock_step(struct inode *inode, uint64_t *pos, uint64_t len, bool append, bool nowait, bool *exclusive)
{
	*exclusive = append || *pos + len > inode_size(inode);
	for (;;) {
		if (!nowait)
			(*exclusive ? rwsem_lock : rwsem_lock_shared)(&inode->rwsem);
		else if (!(*exclusive ? rwsem_trylock : rwsem_trylock_shared)(&inode->rwsem))
			return -EAGAIN;
		if (append)
			*pos = inode_size(inode);
		if (*exclusive || *pos + len <= inode_size(inode))
			return 0;
		rwsem_unlock_shared(&inode->rwsem);     /* it was cut meanwhile */
		*exclusive = true;
	}
}

ssize_t buffered_write(struct iomap_file *file, struct iov_iter *from, uint64_t pos, bool append, bool nowait, uint64_t *end)
{
	struct inode *inode = file->inode;
	struct task *task = cache_task(file->cache);
	size_t want = from->left;
	ssize_t ret = 0;

	if (!task)
		return -ENOMEM;
	while (from->left) {
		uint64_t step = throttle_step(inode->cache, STEP_BYTES), len = min_u64(from->left, step - pos % step), max = INT64_MAX;
		bool exclusive;

		ret = throttle_balance(inode->cache, inode->wb, task, nowait);
		if (!ret)
			ret = lock_step(inode, &pos, len, append, nowait, &exclusive);
		if (ret)
			break;
		len = min_u64(len, step - pos % step);  /* an APPEND knows its place only now; steps end where blocks do */
		if (inode->fixed_size)
			max = inode_size(inode);
		if (pos >= max) {
			ret = inode->fixed_size ? -ENOSPC : -EFBIG;
		} else {
			len = min_u64(len, max - pos);
			ret = write_step(inode, from, pos, len, nowait);
		}
		if (ret > 0)
			inode_touch(inode);
		(exclusive ? rwsem_unlock : rwsem_unlock_shared)(&inode->rwsem);
		if (ret < 0)
			break;
		pos += (uint64_t)ret;
	}
	*end = pos;
	return want > from->left ? (ssize_t)(want - from->left) : ret;
}

/*
 * i_size has been lowered to @pos: nothing at or beyond it is put in flight any more, once whoever holds a folio's lock and
 * still saw the old size has let it go. What is in flight is waited for.
 */
static void wait_beyond(struct mapping *m, uint64_t pos)
{
	const enum xa_mark marks[] = { XA_MARK_DIRTY, XA_MARK_WRITEBACK };
	struct iomap_folio *f;

	for (unsigned i = 0; i < ARRAY_SIZE(marks); i++) {
		pgoff_t at = div_round_up(pos, PAGE_BYTES);

		while ((f = mapping_next_marked(m, &at, UINT64_MAX >> PAGE_SHIFT, marks[i]))) {
			pgoff_t next = at + folio_pages(f);

			if (at << PAGE_SHIFT >= pos) {
				folio_lock(m->zone, f);
				truncate_wait_writeback(m, f);
				folio_unlock(m->zone, f);
			}
			folio_put(m->zone, f);
			at = next;
		}
	}
}

/*
 * File and device get a new size at one time as far as writeback can see: the folio with the last block (of the smaller size)
 * is locked and not in flight meanwhile. So no request made out by the old size comes after the new one, and bytes that are being
 * cut off are not zeroed on a device that still shows them. The old size stays where the device refuses.
 */
static int resize(struct inode *inode, uint64_t size)
{
	struct mapping *m = &inode->mapping;
	uint64_t old = inode_size(inode), edge = min_u64(size, old);
	struct iomap_folio *f;
	int ret = 0;

	mutex_lock(&inode->extend_lock);
	if (size > device_size(inode->device))
		writeback_settle_end(inode);
	f = edge ? mapping_get_locked(m, (edge - 1) >> PAGE_SHIFT) : NULL;
	if (f)
		truncate_wait_writeback(m, f);
	if (size < old) {
		inode_set_size(inode, size);
		if (!MUTANT(M_TRUNCATE_NO_WAIT))
			wait_beyond(m, size);
	}
	if (size > old || device_size(inode->device) > size)
		ret = inode_set_device_size(inode, size);
	else if (device_size_unsure(inode->device))
		ret = inode_settle_device_size(inode);
	if (ret)
		inode_set_size(inode, old);
	else if (size > old)
		inode_set_size(inode, size);
	else if (f && folio_mapping(f) == m && size - folio_pos(f) < folio_bytes(f))
		truncate_trim(m, f, size - folio_pos(f));       /* before anybody can claim blocks of it by the new size */
	if (f) {
		folio_unlock(m->zone, f);
		folio_put(m->zone, f);
	}
	mutex_unlock(&inode->extend_lock);
	return ret;
}

int buffered_truncate(struct inode *inode, uint64_t size)
{
	struct mapping *m = &inode->mapping;
	uint64_t old;
	int ret = 0;

	rwsem_lock(&inode->rwsem);
	old = inode_size(inode);
	if (inode->fixed_size && size != old) {
		ret = -EINVAL;
	} else if (size > old) {
		ret = zero_old_end(inode);
		/*
		 * What the device has not yet of the old size must be there before its size says so; where it cannot be written,
		 * the size stays the cache's affair until it can.
		 */
		if (!ret && !MUTANT(M_GROW_BEFORE_DATA) && device_size(inode->device) < old &&
		    writeback_range_sync(inode, 0, UINT64_MAX))
			inode_set_size(inode, size);
		else if (!ret)
			ret = resize(inode, size);
		flusher_mark_dirty(inode);
	} else if (size < old) {
		rwsem_lock(&m->invalidate_lock);
		ret = resize(inode, size);
		if (!ret) {
			truncate_from(m, size);
			space_forget(inode, size);
		}
		rwsem_unlock(&m->invalidate_lock);
	}
	if (!ret)
		inode_touch(inode);
	rwsem_unlock(&inode->rwsem);
	return ret;
}
