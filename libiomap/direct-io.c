/*
 * direct-io.c - bytes between the device and the caller's memory, around the cache
 *
 * A call is cut into steps that end at multiples of 2 MiB. Everything goes to the device straight from or into the caller's memory
 * where that is aligned as the device wants it, else through up to 64 KiB of the copy pool. What the device cannot take (part
 * of a device block inside the file), and what the cache does not let go of, goes through the cache and from there to the device at
 * once. So a caller may pass any alignment. A write to a file that an engine maps always goes this way.
 *
 *      read    rwsem shared                      flush the range, read the device; if writeback put a block of the range in flight
 *                                                meanwhile, again; after a few times through the cache
 *      write   rwsem, invalidate_lock exclusive  flush, take the folios out, write the device, raise the size
 *
 * Nobody sees half of a block. A write keeps invalidate_lock to its end: a reader that misses waits, so nothing of the range can be
 * read from the device or come back into the cache before the write is over, and there is nothing left to invalidate afterwards.
 * A read does not keep writeback off; it registers with the inode, and each claim of dirty blocks disturbs the reads that it overlaps.
 *
 * A write that grows the device holds extend_lock as writeback does, after all dirty data that must come first. Where the file's old end
 * is inside a block the write begins there at the latest, so that block is not cached meanwhile, and no request made out by that end
 * can come after it.
 *
 * Invariants: the range is in unflushed before any lock is let go; i_size is raised after the device has the bytes, and before
 *             extend_lock is let go; a file's block is cut only by an error of the device.
 * Locking:    as above; no folio lock over I/O.
 * Kernel:     fs/iomap/direct-io.c, generic_file_direct_write(). Differs: no alignment is refused, reads and writes of one block
 *             are atomic, the cache cannot be filled during a write.
 */
#include <errno.h>
#include <string.h>
#include "buffered-write.h"
#include "direct-io.h"
#include "iter.h"
#include "mutant.h"
#include "space.h"
#include "truncate.h"
#include "writeback.h"

#define STEP_BYTES (UINT64_C(2) << 20)
#define PIECES 64                       /* of one request */
#define READ_TRIES 3
#define FLUSH_TRIES 4                   /* two folios may reach out of the range and be dirty there; iomap_resolve() may make more so */
#define THROUGH_CACHE (-ENOTBLK)        /* this step cannot go around it; no caller sees this */

/* The caller's memory as the device can take it: the most of the next @max bytes, or 0. @odd: all @max may be asked for. */
static uint64_t gather(const struct iomap_device *dev, const struct iov_iter *it, uint64_t max, bool odd, struct iovec *iov, int *nr)
{
	uint64_t unit = max_u64(dev->info.block, dev->info.mem_align), got = 0, excess;
	struct iov_iter at = *it;

	for (*nr = 0; *nr < PIECES && got < max; ++*nr) {
		size_t n;
		void *p = iov_iter_piece(&at, (size_t)(max - got), &n);

		if ((uintptr_t)p % dev->info.mem_align)
			break;
		iov[*nr] = (struct iovec){ p, n };
		iov_iter_advance(&at, n);
		got += n;
		if (n % unit) {
			++*nr;
			break;
		}
	}
	if (odd && got == max)
		return got;
	excess = got % dev->info.block;
	for (got -= excess; excess; ) {
		struct iovec *last = &iov[*nr - 1];
		uint64_t cut = min_u64(excess, last->iov_len);

		last->iov_len -= cut;
		excess -= cut;
		*nr -= !last->iov_len;
	}
	return got;
}

/* What one request may carry at most. */
static uint64_t request_max(const struct iomap_device *dev)
{
	uint64_t max = dev->info.max_bytes;

	return round_down(min_u64(max ? max : STEP_BYTES, STEP_BYTES), dev->info.block);
}

/* Copies between the iterator and @buf (to NULL: zeros), @n bytes. */
static void copy_to_iter(struct iov_iter *to, const char *buf, uint64_t n)
{
	while (n) {
		size_t len;
		void *dst = iov_iter_piece(to, (size_t)n, &len);

		if (buf) {
			memcpy(dst, buf, len);
			buf += len;
		} else {
			memset(dst, 0, len);
		}
		iov_iter_advance(to, len);
		n -= len;
	}
}

static void copy_from_iter(char *buf, struct iov_iter *from, uint64_t n)
{
	while (n) {
		size_t len;
		const void *src = iov_iter_piece(from, (size_t)n, &len);

		memcpy(buf, src, len);
		iov_iter_advance(from, len);
		buf += len;
		n -= len;
	}
}

/* --- reading ---------------------------------------------------------------------------------------------- */

/*
 * Part of a device block, or memory that it cannot use: bytes from @addr on the device, at most @len, of which those before @stored are
 * there; or -errno.
 */
static int64_t read_bounced(struct inode *inode, struct iov_iter *to, uint64_t addr, uint64_t len, uint64_t stored)
{
	uint64_t block = inode->device->info.block, skip = addr % block, span, need;
	struct copy_pool *pool = &inode->cache->copies;
	char *buf;
	int64_t got;

	span = min_u64(round_up(skip + min_u64(len, stored), block), round_down(COPY_MAX_BYTES, block));
	need = min_u64(span, skip + stored);
	buf = copy_pool_get(pool, span);
	if (!buf)
		return THROUGH_CACHE;
	got = wb_io(inode->wb, inode->device, IOMAP_REQ_READ, addr - skip, buf, span);
	if (got >= 0 && (uint64_t)got < need)
		got = -EIO;             /* less than its size promised */
	if (got >= 0) {
		got = (int64_t)min_u64(len, need - skip);
		copy_to_iter(to, buf + skip, (uint64_t)got);
	}
	copy_pool_put(pool, buf, span);
	return got;
}

/* One request's worth of [addr, addr + len) on the device; bytes behind the first @stored are zeros. Bytes, or -errno. */
static int64_t read_piece(struct inode *inode, struct iov_iter *to, uint64_t addr, uint64_t len, uint64_t stored)
{
	struct iomap_device *dev = inode->device;
	uint64_t block = dev->info.block, ask = 0, need;
	struct iovec iov[PIECES];
	int64_t got;
	int nr;

	if (!stored) {          /* a hole that the device does not know of yet */
		copy_to_iter(to, NULL, len);
		return (int64_t)len;
	}
	if (addr % block == 0)
		ask = gather(dev, to, min_u64(min_u64(len, request_max(dev)), round_up(stored, block)), false, iov, &nr);
	if (!ask)
		return read_bounced(inode, to, addr, len, stored);
	need = min_u64(ask, stored);
	got = wb_iov(inode->wb, dev, IOMAP_REQ_READ, addr, iov, nr);
	if (got < 0)
		return got;
	if ((uint64_t)got < need)
		return -EIO;
	iov_iter_advance(to, (size_t)need);
	return (int64_t)need;
}

/* Of the mapping in hand: bytes, or -errno. */
static int64_t read_mapped(struct iter *it, struct iov_iter *to, uint64_t stored)
{
	const struct iomap *map = &it->map;
	uint64_t len = iter_length(it), off = it->pos - map->offset;

	if (map->type == IOMAP_MAPPED && !(map->flags & IOMAP_F_NEW))
		return read_piece(it->inode, to, map->addr + off, len, stored > it->pos ? stored - it->pos : 0);
	if (map->type == IOMAP_DELALLOC)
		return THROUGH_CACHE;           /* it came after the flush */
	copy_to_iter(to, map->type == IOMAP_INLINE ? (const char *)map->inline_data + off : NULL, len);
	return (int64_t)len;
}

/* [pos, pos + len), all below the file's size, from where it is stored: bytes, fewer before an error; or -errno, THROUGH_CACHE. */
static ssize_t read_device(struct inode *inode, struct iov_iter *to, uint64_t pos, uint64_t len, bool nowait)
{
	uint64_t stored = inode_stored_end(inode);
	struct iter it;
	int ret;

	iter_init(&it, inode, pos, len, IOMAP_DIRECT | (nowait ? IOMAP_NOWAIT : 0));
	while ((ret = iter_next(&it)) > 0) {
		while (it.left && iter_length(&it)) {
			int64_t got = read_mapped(&it, to, stored);

			if (got < 0) {
				it.status = (int)got;
				break;
			}
			iter_advance(&it, (uint64_t)got);
		}
	}
	if (ret == THROUGH_CACHE || it.pos == pos)
		return ret;
	return (ssize_t)(it.pos - pos);
}

enum { LOOK_INFLIGHT = 1U << 0, LOOK_DIRTY = 1U << 1, LOOK_NOWAIT = 1U << 2 };

/* Is a block of [start, end) of @f, which is locked, in flight or dirty? */
static bool folio_in_the_way(struct mapping *m, struct iomap_folio *f, uint64_t start, uint64_t end, unsigned look)
{
	uint64_t pos = folio_pos(f), from = start > pos ? start - pos : 0, to = end > pos ? min_u64(end - pos, folio_bytes(f)) : 0;
	unsigned first = (unsigned)(from >> m->geom.block_shift), nr;

	if (folio_mapping(f) != m || from >= to)
		return false;
	nr = (unsigned)((to - 1) >> m->geom.block_shift) - first + 1;
	return ((look & LOOK_INFLIGHT) && ifs_any(f, &m->geom, IFS_INFLIGHT, first, nr)) ||
	       ((look & LOOK_DIRTY) && ifs_any(f, &m->geom, IFS_DIRTY, first, nr));
}

/* Is a block of [start, end) in flight or dirty, as @look asks? NOWAIT: or may one be? */
static bool in_the_way(struct inode *inode, uint64_t start, uint64_t end, unsigned look)
{
	struct mapping *m = &inode->mapping;
	pgoff_t at = start >> PAGE_SHIFT, last = (end - 1) >> PAGE_SHIFT;
	struct iomap_folio *f;
	bool any = false;

	if (!(look & LOOK_DIRTY) && !mapping_is_marked(m, XA_MARK_WRITEBACK))
		return false;
	while (!any && at <= last && (f = mapping_next(m, &at, last))) {
		if (!(look & LOOK_NOWAIT)) {
			folio_lock(m->zone, f);
		} else if (!folio_trylock(f)) {
			folio_put(m->zone, f);
			return true;
		}
		any = folio_in_the_way(m, f, start, end, look);
		if (folio_mapping(f) == m)      /* else it went meanwhile: look again */
			at = folio_index(f) + folio_pages(f);
		folio_unlock(m->zone, f);
		folio_put(m->zone, f);
	}
	return any;
}

/* The range is with the device, or can be brought there. 0, -EAGAIN, THROUGH_CACHE. */
static int settle_read(struct inode *inode, uint64_t start, uint64_t end, bool nowait)
{
	struct mapping *m = &inode->mapping;

	if (MUTANT(M_DIRECT_READ_STALE))
		return 0;
	if (nowait)
		return in_the_way(inode, start, end, LOOK_DIRTY | LOOK_INFLIGHT | LOOK_NOWAIT) ? -EAGAIN : 0;
	if (!mapping_is_marked(m, XA_MARK_DIRTY) && !mapping_is_marked(m, XA_MARK_WRITEBACK))
		return 0;
	return writeback_range_sync(inode, start, end) ? THROUGH_CACHE : 0;
}

/* rwsem held shared: nobody cuts, grows or writes around the cache. */
static ssize_t read_around(struct inode *inode, struct iov_iter *to, uint64_t pos, uint64_t len, bool nowait)
{
	uint64_t bs = ifs_block_bytes(&inode->mapping.geom), start = round_down(pos, bs), end = round_up(pos + len, bs);
	unsigned look = LOOK_INFLIGHT | (nowait ? LOOK_NOWAIT : 0);

	/* A block that changed in flight may be half old and half new on the device; it is dirty again by the time its folio can be locked. */
	if (inode->unstable)
		look |= LOOK_DIRTY;
	for (unsigned tries = 0; tries < READ_TRIES; tries++) {
		struct iov_iter at = *to;
		struct direct_read r;
		ssize_t ret = settle_read(inode, start, end, nowait);
		bool quiet;

		if (ret)
			return ret;
		inode_read_begin(inode, &r, start, end);
		quiet = !in_the_way(inode, start, end, look);
		ret = quiet ? read_device(inode, &at, pos, len, nowait) : 0;
		quiet &= inode_read_end(inode, &r);
		if (quiet || MUTANT(M_DIRECT_READ_TORN)) {
			if (ret > 0)
				*to = at;
			return ret;
		}
		if (nowait)
			return -EAGAIN;
	}
	return THROUGH_CACHE;
}

ssize_t direct_read(struct iomap_file *file, struct iov_iter *to, uint64_t pos, bool nowait)
{
	struct inode *inode = file->inode;
	size_t want = to->left;
	ssize_t ret = 0;

	while (to->left) {
		uint64_t len = min_u64(to->left, STEP_BYTES - pos % STEP_BYTES), asked = len, size;
		struct iov_iter part = *to;

		if (!nowait) {
			rwsem_lock_shared(&inode->rwsem);
		} else if (!rwsem_trylock_shared(&inode->rwsem)) {
			ret = -EAGAIN;
			break;
		}
		size = inode_size(inode);
		len = pos < size ? min_u64(len, size - pos) : 0;
		part.left = (size_t)len;
		ret = len ? read_around(inode, &part, pos, len, nowait) : 0;
		rwsem_unlock_shared(&inode->rwsem);
		if (ret == THROUGH_CACHE)
			ret = nowait ? -EAGAIN : buffered_read(file, &part, pos, 0);
		if (ret <= 0)
			break;
		iov_iter_advance(to, (size_t)ret);
		pos += (uint64_t)ret;
		/* It ended at the end of the file, maybe inside a block: what comes there now is of a later write. */
		if ((uint64_t)ret < asked)
			break;
	}
	return want > to->left ? (ssize_t)(want - to->left) : ret;
}

/* --- writing ---------------------------------------------------------------------------------------------- */

/* One request is on the device, or some bytes of it: counted before any lock is let go. */
static void written(struct inode *inode, uint64_t pos, uint64_t len, uint64_t flush_failures)
{
	if (!MUTANT(M_DIRECT_NOT_UNFLUSHED))
		inode_note_written(inode, pos, pos + len, flush_failures);
	space_written(inode, pos, pos + len);
	if (pos + len > inode_size(inode))
		inode_set_size(inode, pos + len);
}

/* Does it take a copy to give this memory to the device? */
static bool needs_copy(const struct iomap_device *dev, const struct iov_iter *it)
{
	uint64_t unit = max_u64(dev->info.block, dev->info.mem_align);
	struct iov_iter at = *it;

	while (at.left) {
		size_t n;
		void *p = iov_iter_piece(&at, at.left, &n);

		if ((uintptr_t)p % dev->info.mem_align || (n < at.left && n % unit))
			return true;
		iov_iter_advance(&at, n);
	}
	return false;
}

/* The next piece of @left bytes, from the caller's memory or by @copy. Bytes, or -errno; *@whole: all that was asked for. */
static int64_t write_piece(struct inode *inode, const struct iov_iter *from, uint64_t pos, uint64_t left, char *copy, bool *whole)
{
	struct iomap_device *dev = inode->device;
	uint64_t max = min_u64(left, request_max(dev)), ask;
	struct iovec iov[PIECES];
	int64_t got;
	int nr;

	ask = gather(dev, from, max, max == left, iov, &nr);
	if (ask) {
		got = wb_iov(inode->wb, dev, IOMAP_REQ_WRITE, pos, iov, nr);
	} else {
		struct iov_iter at = *from;

		ask = min_u64(left, round_down(COPY_MAX_BYTES, dev->info.block));
		copy_from_iter(copy, &at, ask);
		got = wb_io(inode->wb, dev, IOMAP_REQ_WRITE, pos, copy, ask);
	}
	*whole = got == (int64_t)ask;
	return got ? got : -EIO;
}

/* All that is left of @from to the device, at @pos. Bytes, fewer before an error; or -errno, THROUGH_CACHE. */
static ssize_t write_device(struct inode *inode, struct iov_iter *from, uint64_t pos)
{
	struct copy_pool *pool = &inode->cache->copies;
	uint64_t len = from->left, done = 0, copy_bytes = min_u64(len, COPY_MAX_BYTES);
	char *copy = NULL;
	int64_t got = 0;
	bool whole = true;

	/* All memory there before the first byte goes: no block is to be written half around the cache and half through it. */
	if (needs_copy(inode->device, from)) {
		copy = copy_pool_get(pool, copy_bytes);
		if (!copy)
			return THROUGH_CACHE;
	}
	while (done < len && whole) {
		uint64_t failures = load_acquire(&inode->flush_failures);

		rangeset_reserve(&inode->unflushed, 1);
		got = write_piece(inode, from, pos + done, len - done, copy, &whole);
		if (got < 0)
			break;
		written(inode, pos + done, (uint64_t)got, failures);
		iov_iter_advance(from, (size_t)got);
		done += (uint64_t)got;
	}
	if (copy)
		copy_pool_put(pool, copy, copy_bytes);
	return done ? (ssize_t)done : (ssize_t)got;
}

/*
 * Takes what is cached of [start, end) out of the cache, written first. rwsem exclusive. On 0 invalidate_lock is held exclusively as well.
 */
static int empty_range(struct inode *inode, uint64_t start, uint64_t end, bool nowait)
{
	struct mapping *m = &inode->mapping;
	pgoff_t at = start >> PAGE_SHIFT;
	struct iomap_folio *f;

	if (nowait) {
		if (!rwsem_trylock(&m->invalidate_lock))
			return -EAGAIN;
		f = mapping_next(m, &at, (end - 1) >> PAGE_SHIFT);
		if (!f)
			return 0;
		folio_put(m->zone, f);
		rwsem_unlock(&m->invalidate_lock);
		return -EAGAIN;
	}
	if (writeback_range_sync(inode, start, end))
		return THROUGH_CACHE;
	for (unsigned tries = 0; ; tries++) {
		uint64_t dirty = start, stop;

		rwsem_lock(&m->invalidate_lock);
		if (invalidate_range(m, &dirty, end, &stop))
			return 0;
		rwsem_unlock(&m->invalidate_lock);
		/* A folio that reaches out of the range, dirty there. */
		if (tries == FLUSH_TRIES || writeback_range_sync(inode, dirty, stop))
			return THROUGH_CACHE;
	}
}

/*
 * Takes extend_lock: the device may grow, by this thread alone. What was made out to end where the file did is over then: under NOWAIT
 * because the block with that end is in the range, and nothing of the range is cached.
 */
static int lock_extend(struct inode *inode, bool nowait)
{
	if (!nowait) {
		mutex_lock(&inode->extend_lock);
		writeback_settle_end(inode);
		return 0;
	}
	if (!mutex_trylock(&inode->extend_lock))
		return -EAGAIN;
	if (device_size(inode->device) == inode_size(inode) && !device_size_unsure(inode->device))
		return 0;
	mutex_unlock(&inode->extend_lock);
	return -EAGAIN;         /* something must be written, or set, before */
}

/* All that is left of @from, around the cache to @pos. rwsem exclusive. */
static ssize_t write_around(struct inode *inode, struct iov_iter *from, uint64_t pos, bool nowait)
{
	struct mapping *m = &inode->mapping;
	uint64_t end = pos + from->left;
	bool grows;
	ssize_t ret = empty_range(inode, pos, end, nowait);

	if (ret)
		return ret;
	if (MUTANT(M_DIRECT_LETS_READERS_IN))
		rwsem_unlock(&m->invalidate_lock);
	grows = inode_ends_device(inode) && end > device_size(inode->device);
	ret = grows ? lock_extend(inode, nowait) : 0;
	if (!ret) {
		ret = grows ? inode_settle_device_size(inode) : 0;
		if (!ret)
			ret = write_device(inode, from, pos);
		if (grows) {
			inode_settle_device_size(inode);        /* if that fails, whoever needs it tries again */
			mutex_unlock(&inode->extend_lock);
		}
	}
	if (!MUTANT(M_DIRECT_LETS_READERS_IN))
		rwsem_unlock(&m->invalidate_lock);
	return ret;
}

/* What becomes of a step [pos, pos + *len): 0: around the cache, as far as *len says by now; THROUGH_CACHE: so much through it. */
static int divide(const struct inode *inode, uint64_t pos, uint64_t *len)
{
	uint64_t unit = inode->device->info.block, bs = ifs_block_bytes(&inode->mapping.geom), size = inode_size(inode);
	uint64_t end = pos + *len, whole = round_down(end, bs);

	if (inode->mapped)              /* places, conversions and the size are decided at writeback */
		return THROUGH_CACHE;
	if (pos > size && size % bs)    /* the rest of the last block must become zeros */
		return THROUGH_CACHE;
	if (pos % unit) {
		*len = min_u64(*len, round_up(pos, bs) - pos);
		return THROUGH_CACHE;
	}
	if (end % unit == 0 || (end >= size && !inode->fixed_size))     /* the file's end may be anywhere */
		return 0;
	if (whole <= pos)
		return THROUGH_CACHE;
	*len = whole - pos;
	return 0;
}

/* One step under rwsem: bytes, -errno, or THROUGH_CACHE with *@pos and what is left of @from of what is to go there. */
static ssize_t write_step(struct inode *inode, struct iov_iter *from, uint64_t *pos, uint64_t *len, bool append, bool nowait)
{
	uint64_t max = INT64_MAX;
	ssize_t ret;

	if (!nowait)
		rwsem_lock(&inode->rwsem);
	else if (!rwsem_trylock(&inode->rwsem))
		return -EAGAIN;
	if (append)
		*pos = inode_size(inode);
	*len = min_u64(*len, STEP_BYTES - *pos % STEP_BYTES);
	if (inode->fixed_size)
		max = inode_size(inode);
	if (*pos >= max) {
		ret = inode->fixed_size ? -ENOSPC : -EFBIG;
	} else {
		*len = min_u64(*len, max - *pos);
		ret = divide(inode, *pos, len);
		from->left = (size_t)*len;
		if (!ret)
			ret = write_around(inode, from, *pos, nowait);
		if (ret > 0)
			inode_touch(inode);
	}
	rwsem_unlock(&inode->rwsem);
	return ret;
}

ssize_t direct_write(struct iomap_file *file, struct iov_iter *from, uint64_t pos, bool append, bool nowait, uint64_t *end)
{
	struct inode *inode = file->inode;
	size_t want = from->left;
	ssize_t ret = 0;

	*end = pos;
	while (from->left) {
		uint64_t len = from->left, to;
		struct iov_iter part = *from;
		bool cut = false;

		ret = write_step(inode, &part, &pos, &len, append, nowait);
		if (ret == THROUGH_CACHE && nowait)
			ret = -EAGAIN;
		if (ret == THROUGH_CACHE) {
			ret = buffered_write_through(file, &part, pos, append, &to);
			if (ret > 0) {
				pos = to - (uint64_t)ret;
				invalidate_clean(&inode->mapping, pos >> PAGE_SHIFT, (to - 1) >> PAGE_SHIFT);
				cut = (uint64_t)ret < len;      /* an error came, and an APPEND must not be made twice */
			}
		}
		if (ret <= 0)
			break;
		iov_iter_advance(from, (size_t)ret);
		pos += (uint64_t)ret;
		*end = pos;
		if (cut)
			break;
	}
	return want > from->left ? (ssize_t)(want - from->left) : ret;
}
