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
#include "iter.h"
#include "mutant.h"
#include "reclaim.h"
#include "seek.h"
#include "space.h"
#include "throttle.h"
#include "truncate.h"
#include "writeback.h"

#define STEP_BYTES (UINT64_C(2) << 20)

/* Is some block of the range in a request that reads the folio's memory, of a file whose contents must not change meanwhile? */
static bool must_wait(const struct inode *inode, struct iomap_folio *f, unsigned first, unsigned nr)
{
	return !inode->unstable && folio_is_writeback(f) && folio_has_stable_io(f) &&
	       ifs_any(f, &inode->mapping.geom, IFS_INFLIGHT, first, nr);
}

struct stable_wait { struct mapping *m; struct iomap_folio *f; };

static bool no_stable_io(void *arg)
{
	struct stable_wait *w = arg;

	return !folio_is_writeback(w->f) || !folio_has_stable_io(w->f);
}

/*
 * The locked folio that holds or will hold @pos: an old one, or a new one large enough for @len. @flags: IOMAP_NOWAIT;
 * IOMAP_DONTCACHE: a new one is to go when it is clean, an old one stays what it is. Without it an old one is wanted from now on.
 */
static int get_folio(struct inode *inode, uint64_t pos, uint64_t len, unsigned flags, struct iomap_folio **out)
{
	bool nowait = flags & IOMAP_NOWAIT, dontcache = flags & IOMAP_DONTCACHE;
	unsigned how = MAPPING_WRITE | (nowait ? 0 : MAPPING_MAY_WAIT) | (dontcache ? MAPPING_DROPBEHIND : 0);
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
			if (!dontcache) {
				mapping_keep(m, *out);
				folio_mark_referenced(*out);
			} else if (MUTANT(M_OLD_MADE_BEHIND) && !folio_is_dirty(*out)) {
				folio_flags_set(*out, FOLIO_DROPBEHIND);
			}
			return 0;
		}
		ret = mapping_create(m, pos >> PAGE_SHIFT, order, how, out);
		if (ret == -ENOMEM && nowait)
			ret = -EAGAIN;
	} while (ret == -EEXIST);
	return ret;
}

/*
 * A block that the write covers in part must hold its other bytes first: from the device if one of them is stored there,
 * else zeros.
 */
static int prepare_block(struct iter *it, struct iomap_folio *f, unsigned blk, uint64_t from, uint64_t to, bool nowait)
{
	struct inode *inode = it->inode;
	struct mapping *m = &inode->mapping;
	uint64_t bs = ifs_block_bytes(&m->geom), b0 = blk * bs, b1 = b0 + bs, pos = folio_pos(f), stored = inode_stored_end(inode);
	const struct iomap *source = iter_source(it);

	if ((from <= b0 && to >= b1) || ifs_range_uptodate(f, &m->geom, blk, 1))
		return 0;
	stored = stored > pos + b0 ? min_u64(stored - pos, b1) : b0;    /* offset in the folio where stored bytes end */
	if ((source->type != IOMAP_MAPPED && source->type != IOMAP_INLINE) ||
	    ((source->flags & IOMAP_F_NEW) && !MUTANT(M_NEW_NOT_ZEROED)))
		stored = b0;
	if (MUTANT(M_SOURCE_IGNORED))
		source = &it->map;
	if ((from > b0 && stored > b0) || (to < stored)) {
		int ret = nowait ? -EAGAIN : fill_block_from(inode, f, blk, source);

		if (!ret)
			mapping_set_uptodate(m, f, blk, 1);
		return ret;
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

/* What an engine keeps with its metadata is written there; nothing of the folio becomes dirty. */
static void write_inline(const struct iter *it, const struct iomap_folio *f, uint64_t off, uint64_t len)
{
	memcpy((char *)it->map.inline_data + (folio_pos(f) + off - it->map.offset), folio_addr(it->inode->mapping.zone, f) + off,
	       len);
}

/*
 * One folio's part of a step, where the mapping in hand says: bytes copied, 0 if that is stale, or -errno. rwsem held; exclusive
 * where the size is passed.
 */
static ssize_t write_folio(struct iter *it, struct iov_iter *from)
{
	struct inode *inode = it->inode;
	struct mapping *m = &inode->mapping;
	uint64_t pos = it->pos, len = iter_length(it);
	bool nowait = it->flags & IOMAP_NOWAIT;
	unsigned first, last;
	struct iomap_folio *f;
	uint64_t off, done;
	int ret;

	for (;;) {
		struct stable_wait w;

		ret = get_folio(inode, pos, len, it->flags, &f);
		if (ret)
			return ret;
		off = pos - folio_pos(f);
		len = min_u64(len, folio_bytes(f) - off);
		first = (unsigned)(off >> m->geom.block_shift);
		last = (unsigned)((off + len - 1) >> m->geom.block_shift);
		if (MUTANT(M_WRITE_INTO_FLIGHT) || !must_wait(inode, f, first, last - first + 1))
			break;
		folio_unlock(m->zone, f);
		w = (struct stable_wait){ m, f };
		if (!nowait)
			wait_until(&m->zone->waits, f, &f->flags, FOLIO_WAITERS, no_stable_io, &w);
		folio_put(m->zone, f);
		if (nowait)
			return -EAGAIN;
	}
	if (!iter_valid(it)) {
		len = 0;
		goto out;
	}
	ret = prepare_block(it, f, first, off, off + len, nowait);
	if (!ret && last != first)
		ret = prepare_block(it, f, last, off, off + len, nowait);
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
	if (it->map.type == IOMAP_INLINE)
		write_inline(it, f, off, len);
	else
		account(inode, f, first, last - first + 1);
	if (pos + len > inode_size(inode)) {
		inode_set_size(inode, pos + len);
		it->map.flags |= IOMAP_F_SIZE_CHANGED;
	}
out:
	folio_unlock(m->zone, f);
	if (it->flags & IOMAP_DONTCACHE)
		reclaim_drop_behind(m, f);      /* where nothing became dirty: after an error, or inline */
	folio_put(m->zone, f);
	return ret ? ret : (ssize_t)len;
}

/* --- zeros ------------------------------------------------------------------------------------------------- */

static bool reads_as_zeros(const struct iomap *map) { return map->type == IOMAP_HOLE || map->type == IOMAP_UNWRITTEN; }

/* The locked folio at it->pos with nothing in the way of changing its bytes, or NULL: there is none and none is needed. */
static int folio_to_zero(struct iter *it, struct iomap_folio **out)
{
	struct inode *inode = it->inode;
	struct mapping *m = &inode->mapping;

	for (;;) {
		struct iomap_folio *f;
		uint64_t off;
		unsigned first, last;
		int ret = 0;

		if (reads_as_zeros(iter_source(it)))
			f = mapping_get_locked(m, it->pos >> PAGE_SHIFT);
		else
			ret = get_folio(inode, it->pos, iter_length(it), it->flags & IOMAP_DONTCACHE, &f);
		if (f && !(it->flags & IOMAP_DONTCACHE))
			mapping_keep(m, f);
		*out = f;
		if (ret || !f)
			return ret;
		off = it->pos - folio_pos(f);
		first = (unsigned)(off >> m->geom.block_shift);
		last = (unsigned)((min_u64(off + iter_length(it), folio_bytes(f)) - 1) >> m->geom.block_shift);
		if (!must_wait(inode, f, first, last - first + 1))
			return 0;
		folio_unlock(m->zone, f);
		folio_wait_writeback(m->zone, f);
		folio_put(m->zone, f);
	}
}

/* Zeros [from, to) of a folio's block, and makes it dirty where it is not inline. */
static int zero_block(struct iter *it, struct iomap_folio *f, unsigned blk, uint64_t from, uint64_t to)
{
	struct inode *inode = it->inode;
	struct mapping *m = &inode->mapping;
	int ret = prepare_block(it, f, blk, from, to, false);

	if (ret)
		return ret;
	folio_content_begin(f, from, to - from);
	folio_zero(folio_addr(m->zone, f) + from, to - from);
	folio_content_end(f, from, to - from);
	mapping_set_uptodate(m, f, blk, 1);
	if (it->map.type == IOMAP_INLINE)
		write_inline(it, f, from, to - from);
	else if (!MUTANT(M_EDGE_NOT_DIRTY))
		account(inode, f, blk, 1);
	return 0;
}

/* One folio's part of what is to become zeros: bytes done, 0 if the mapping is stale, or -errno if there are none. */
static ssize_t zero_folio(struct iter *it)
{
	struct mapping *m = &it->inode->mapping;
	uint64_t bs = ifs_block_bytes(&m->geom), len = iter_length(it), off, done = 0;
	bool only_dirty = reads_as_zeros(iter_source(it));
	struct iomap_folio *f;
	int ret = folio_to_zero(it, &f);

	if (ret)
		return ret;
	if (!f)         /* nothing cached, nothing stored: zeros already, if that was not written and converted meanwhile */
		return iter_valid(it) ? (ssize_t)min_u64(len, PAGE_BYTES - it->pos % PAGE_BYTES) : 0;
	off = it->pos - folio_pos(f);
	len = min_u64(len, folio_bytes(f) - off);
	if (!iter_valid(it))
		len = 0;
	while (done < len) {
		uint64_t at = off + done, to = min_u64(round_down(at, bs) + bs, off + len);
		unsigned blk = (unsigned)(at / bs);
		/* In flight first: what fails is dirty again when it has left. */
		bool zero = !only_dirty || ifs_any(f, &m->geom, IFS_INFLIGHT, blk, 1) || ifs_block_set(f, &m->geom, IFS_DIRTY, blk);

		/* A clean block is zeros if the mapping holds still: it may have been on its way to where there are none. */
		if (!zero && !iter_valid(it))
			break;
		if (zero)
			ret = zero_block(it, f, blk, at, to);
		if (ret)
			break;
		done = to - off;
	}
	folio_unlock(m->zone, f);
	folio_put(m->zone, f);
	return done || !ret ? (ssize_t)done : ret;      /* what is dirty by now is the engine's to keep */
}

/* @flags: IOMAP_DONTCACHE */
static int zero_range(struct inode *inode, uint64_t pos, uint64_t len, unsigned flags)
{
	struct iter it;
	int ret;

	iter_init(&it, inode, pos, len, IOMAP_ZERO | flags);
	while ((ret = iter_next(&it)) > 0) {
		while (it.left && iter_length(&it)) {
			ssize_t n = zero_folio(&it);

			if (n <= 0) {
				it.status = (int)n;
				break;
			}
			iter_advance(&it, (uint64_t)n);
		}
	}
	return ret;
}

int buffered_zero(struct inode *inode, uint64_t pos, uint64_t len) { return zero_range(inode, pos, len, 0); }

/* @flags: IOMAP_DONTCACHE for a DONTCACHE operation. */
static int zero_edge(struct inode *inode, uint64_t pos, uint64_t end, unsigned flags)
{
	lockdep_assert_held(&inode->rwsem);
	/*
	 * Where nothing is stored, and nothing is on its way there, zeros are there already. An engine's mapping says so to the walk
	 * itself.
	 */
	if (pos >= end || (!inode->mapped && seek_is_hole(inode, round_down(pos, ifs_block_bytes(&inode->mapping.geom)))))
		return 0;
	return zero_range(inode, pos, end - pos, flags);
}

int buffered_zero_edge(struct inode *inode, uint64_t pos, uint64_t end) { return zero_edge(inode, pos, end, 0); }

/*
 * The file grows past its last, partial block: the rest of that block must be zeros on the device as well. rwsem exclusive.
 * @flags: IOMAP_DONTCACHE.
 */
static int zero_old_end(struct inode *inode, unsigned flags)
{
	uint64_t size = inode_size(inode), bs = ifs_block_bytes(&inode->mapping.geom);

	return size & (bs - 1) ? zero_edge(inode, size, round_up(size, bs), flags) : 0;
}

/* --- writing ------------------------------------------------------------------------------------------------ */

/* One step under the rwsem: bytes written, or -errno if none. */
static ssize_t write_step(struct inode *inode, struct iov_iter *from, uint64_t pos, uint64_t len, int flags)
{
	bool nowait = flags & IOMAP_RWF_NOWAIT;
	unsigned dontcache = flags & IOMAP_RWF_DONTCACHE ? IOMAP_DONTCACHE : 0;
	struct iter it;
	int ret;

	if (pos > inode_size(inode)) {
		ret = nowait && inode_size(inode) % ifs_block_bytes(&inode->mapping.geom) ? -EAGAIN :
		      zero_old_end(inode, dontcache);
		if (ret)
			return ret;
	}
	iter_init(&it, inode, pos, len, IOMAP_WRITE | (nowait ? IOMAP_NOWAIT : 0) | dontcache);
	while ((ret = iter_next(&it)) > 0) {
		if (MUTANT(M_SIZE_BEFORE_DATA) && it.pos + iter_length(&it) > inode_size(inode))
			inode_set_size(inode, it.pos + iter_length(&it));
		while (it.left && iter_length(&it)) {
			ssize_t n = write_folio(&it, from);

			if (n <= 0) {
				it.status = (int)n;
				break;
			}
			iter_advance(&it, (uint64_t)n);
		}
	}
	return it.pos > pos ? (ssize_t)(it.pos - pos) : ret;
}

/* Takes the rwsem as the step [*pos, *pos + len) needs it. 0, or -EAGAIN. */
static int lock_step(struct inode *inode, uint64_t *pos, uint64_t len, bool append, bool nowait, bool *exclusive)
{
	*exclusive = append || inode->mapped || *pos + len > inode_size(inode);
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

ssize_t buffered_write(struct iomap_file *file, struct iov_iter *from, uint64_t pos, int flags, uint64_t *end)
{
	bool append = flags & IOMAP_RWF_APPEND, nowait = flags & IOMAP_RWF_NOWAIT;
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
			ret = write_step(inode, from, pos, len, flags);
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

int buffered_zero_steps(struct iomap_file *file, uint64_t pos, uint64_t end)
{
	static const char zeros[65536];
	struct iovec iov[STEP_BYTES / sizeof(zeros)];
	struct inode *inode = file->inode;
	struct task *task = cache_task(file->cache);

	if (!task)
		return -ENOMEM;
	for (unsigned i = 0; i < ARRAY_SIZE(iov); i++)
		iov[i] = (struct iovec){ (void *)(uintptr_t)zeros, sizeof(zeros) };
	for (;;) {
		uint64_t step = throttle_step(inode->cache, STEP_BYTES), len = step - pos % step, stop;
		ssize_t ret = throttle_balance(inode->cache, inode->wb, task, false);
		struct iov_iter from;
		bool last;

		if (ret)
			return (int)ret;
		(inode->mapped ? rwsem_lock : rwsem_lock_shared)(&inode->rwsem);
		stop = min_u64(end, inode_size(inode));
		if (pos < stop) {
			len = min_u64(len, stop - pos);
			iov_iter_init(&from, iov, ARRAY_SIZE(iov), (size_t)len);
			if (inode->mapped)      /* what is no data already is left alone */
				ret = buffered_zero(inode, pos, len);
			else
				ret = write_step(inode, &from, pos, len, 0);
			if (inode->mapped && !ret)
				ret = (ssize_t)len;
			inode_touch(inode);
		}
		/* The end of the file is the end, though it may move on: it may lie inside a block, which is zeroed in one piece or not at all. */
		last = pos >= stop || (ret > 0 && pos + (uint64_t)ret == stop);
		(inode->mapped ? rwsem_unlock : rwsem_unlock_shared)(&inode->rwsem);
		if (last || ret < 0)
			return ret < 0 ? (int)ret : 0;
		pos += (uint64_t)ret;
	}
}

ssize_t buffered_write_through(struct iomap_file *file, struct iov_iter *from, uint64_t pos, bool append, uint64_t *end)
{
	size_t want = from->left;
	ssize_t ret = 0;

	*end = pos;
	while (from->left) {
		struct iov_iter part = *from;
		uint64_t to;
		size_t wrote;

		part.left = (size_t)min_u64(from->left, STEP_BYTES);
		ret = buffered_write(file, &part, pos, append ? IOMAP_RWF_APPEND : 0, &to);
		if (ret <= 0)
			break;
		wrote = (size_t)ret;
		ret = writeback_through(file->inode, to - wrote, to);
		if (ret)
			break;
		iov_iter_advance(from, wrote);
		pos = *end = to;
	}
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

/*
 * The engine keeps the size: it hears of the new one when nothing beyond it is cached any more. The folio with the new end is locked
 * while the size changes, as in resize(): a claim takes whole pages, and must not take blocks of it beyond the end. rwsem exclusive.
 */
static int truncate_mapped(struct inode *inode, uint64_t size)
{
	struct mapping *m = &inode->mapping;
	uint64_t old = inode_size(inode), bs = ifs_block_bytes(&m->geom);
	struct iomap_folio *f;
	int ret;

	if (!inode->ops->set_size)
		return -EOPNOTSUPP;
	if (size > old) {
		ret = zero_old_end(inode, 0);
		if (!ret)
			ret = inode->ops->set_size(inode->ops_priv, size);
		if (!ret)
			inode_set_size(inode, size);
		return ret;
	}
	ret = size & (bs - 1) ? buffered_zero(inode, size, min_u64(old, round_up(size, bs)) - size) : 0;
	if (ret)
		return ret;
	rwsem_lock(&m->invalidate_lock);
	f = size ? mapping_get_locked(m, (size - 1) >> PAGE_SHIFT) : NULL;
	if (f)
		truncate_wait_writeback(m, f);
	inode_set_size(inode, size);
	wait_beyond(m, size);
	if (f) {
		if (folio_mapping(f) == m && size - folio_pos(f) < folio_bytes(f))
			truncate_trim(m, f, size - folio_pos(f));
		folio_unlock(m->zone, f);
		folio_put(m->zone, f);
	}
	truncate_from(m, size);
	ret = inode->ops->set_size(inode->ops_priv, size);
	rwsem_unlock(&m->invalidate_lock);
	return ret;
}

int buffered_grow(struct inode *inode, uint64_t size)
{
	uint64_t old = inode_size(inode);
	int ret;

	if (inode->mapped)
		return truncate_mapped(inode, size);
	ret = zero_old_end(inode, 0);
	/*
	 * What the device has not yet of the old size must be there before its size says so; where it cannot be written, the size
	 * stays the cache's affair until it can.
	 */
	if (!ret && !MUTANT(M_GROW_BEFORE_DATA) && device_size(inode->device) < old && writeback_range_sync(inode, 0, UINT64_MAX))
		inode_set_size(inode, size);
	else if (!ret)
		ret = resize(inode, size);
	flusher_mark_dirty(inode);
	return ret;
}

int buffered_truncate(struct inode *inode, uint64_t size)
{
	struct mapping *m = &inode->mapping;
	uint64_t old;
	int ret = 0;

	rwsem_lock(&inode->rwsem);
	old = inode_size(inode);
	if (inode->mapped && size != old) {
		ret = truncate_mapped(inode, size);
	} else if (inode->fixed_size && size != old) {
		ret = -EINVAL;
	} else if (size > old) {
		ret = buffered_grow(inode, size);
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
