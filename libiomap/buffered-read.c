/*
 * buffered-read.c - bytes copied out of folios
 *
 * A hit takes no lock and writes no shared memory. Under RCU the folio is looked up and its identity noted; mapping, index,
 * uptodate bits and i_size are checked; the content count of this 64 KiB is noted, the bytes are copied, and both counts are
 * looked at again. If either moved, or a writer was in there, the copy is not believed. After two such failures the reader takes a
 * reference and the folio lock and copies undisturbed. So no read ever sees part of a block write.
 *
 *      miss           -> readahead.c creates folios and starts reading; look again
 *      not uptodate   -> wait for the folio's lock (a read in flight holds it), then read just the blocks wanted
 *      disturbed      -> once more, then locked
 *
 * Invariants: bytes are returned only below an i_size read after the blocks were seen uptodate.
 * Locking:    invalidate_lock shared around whatever adds or fills folios; one folio lock.
 * Kernel:     filemap_read() in mm/filemap.c. Differs: a read is atomic against a write of the same block.
 */
#include <errno.h>
#include <string.h>
#include "buffered-read.h"
#include "dontcache.h"
#include "fill.h"

void iov_iter_init(struct iov_iter *it, const struct iovec *iov, int nr, size_t len)
{
	*it = (struct iov_iter){ .iov = iov, .nr = nr, .left = len };
	while (it->nr && !it->iov->iov_len) {
		it->iov++;
		it->nr--;
	}
}

void *iov_iter_piece(const struct iov_iter *it, size_t max, size_t *len)
{
	*len = (size_t)min_u64(min_u64(max, it->left), it->iov->iov_len - it->off);
	return (char *)it->iov->iov_base + it->off;
}

void iov_iter_advance(struct iov_iter *it, size_t n)
{
	it->left -= n;
	it->off += n;
	while (it->nr && it->off >= it->iov->iov_len) {
		it->off -= it->iov->iov_len;
		it->iov++;
		it->nr--;
	}
}

enum look { LOOK_MISS, LOOK_NOT_UPTODATE, LOOK_DISTURBED, LOOK_EOF };

/*
 * The lock-free attempt: bytes copied from @pos, at most to the end of its 64 KiB, or 0 and what stood in the way. @task NULL:
 * reclaim is not to hear of it.
 */
static size_t copy_hit(struct mapping *m, const struct inode *inode, struct task *task, void *dst, size_t len, uint64_t pos,
		       enum look *why, bool *marked, bool missed)
{
	uint32_t identity, content, flags;
	struct iomap_folio *f, *seg;
	uint64_t off, index, size, bytes;
	size_t n = 0;

	rcu_enter();
	f = xa_load(&m->tree, pos >> PAGE_SHIFT);
	*why = LOOK_MISS;
	if (!f)
		goto out;
	*why = LOOK_DISTURBED;
	identity = folio_identity(f);
	index = folio_index(f);
	bytes = folio_bytes(f);
	if ((identity & 1) || folio_mapping(f) != m || pos >> PAGE_SHIFT < index || (pos >> PAGE_SHIFT) - index >= bytes >> PAGE_SHIFT)
		goto out;
	off = pos - (index << PAGE_SHIFT);
	n = (size_t)min_u64(len, min_u64(bytes - off, CONTENT_FRAMES * PAGE_BYTES - off % (CONTENT_FRAMES * PAGE_BYTES)));
	__builtin_prefetch(folio_addr(m->zone, f) + off);
	if (!folio_is_uptodate(f)) {
		unsigned first = (unsigned)(off >> m->geom.block_shift), last = (unsigned)((off + n - 1) >> m->geom.block_shift);

		*why = LOOK_NOT_UPTODATE;
		if (!ifs_range_uptodate(f, &m->geom, first, 1)) {
			n = 0;
			goto out;
		}
		if (last > first && !ifs_range_uptodate(f, &m->geom, first, last - first + 1))
			n = (size_t)(((uint64_t)(first + 1) << m->geom.block_shift) - off);     /* the first block alone */
	}
	size = inode_size(inode);       /* after the bits: below it and uptodate means written */
	*why = LOOK_EOF;
	if (pos >= size) {
		n = 0;
		goto out;
	}
	n = (size_t)min_u64(n, size - pos);
	*why = LOOK_DISTURBED;
	seg = folio_segment(f, off);
	content = load_acquire(&seg->content);  /* pairs with folio_content_end() */
	if (content & 1) {
		n = 0;
		goto out;
	}
	seq_copy(dst, folio_addr(m->zone, f) + off, n);
	fence_acquire();                        /* pairs with the fences in folio_content_begin() and folio_identity_begin() */
	if (load_relaxed(&seg->content) != content || load_relaxed(&f->identity) != identity) {
		n = 0;
		goto out;
	}
	flags = folio_flags(f);
	if (flags & FOLIO_UNUSED)
		and_relaxed(&f->flags, ~(uint32_t)FOLIO_UNUSED);        /* its first use is what it was read for */
	else if (task && !missed && task->last != f)
		folio_mark_referenced(f);
	if (task)
		task->last = f;
	*marked = flags & FOLIO_READAHEAD;
out:
	rcu_exit();
	return n;
}

/* The folio lock keeps writers out; what is not uptodate is left to the caller. */
static ssize_t copy_locked(struct mapping *m, const struct inode *inode, void *dst, size_t len, uint64_t pos, bool nowait,
			   bool quiet)
{
	struct iomap_folio *f;
	uint64_t off, size;
	size_t n = 0;

	if (nowait) {
		int ret = mapping_get_trylocked(m, pos >> PAGE_SHIFT, &f);

		if (ret)
			return ret;
	} else {
		f = mapping_get_locked(m, pos >> PAGE_SHIFT);
	}
	if (!f)
		return 0;
	off = pos - folio_pos(f);
	n = (size_t)min_u64(len, folio_bytes(f) - off);
	if (!ifs_range_uptodate(f, &m->geom, (unsigned)(off >> m->geom.block_shift),
				(unsigned)(((off + n - 1) >> m->geom.block_shift) - (off >> m->geom.block_shift)) + 1))
		n = (size_t)min_u64(n, ifs_block_bytes(&m->geom) - off % ifs_block_bytes(&m->geom));
	size = inode_size(inode);
	if (pos >= size || !ifs_range_uptodate(f, &m->geom, (unsigned)(off >> m->geom.block_shift), 1))
		n = 0;
	n = (size_t)min_u64(n, pos < size ? size - pos : 0);
	folio_copy(dst, folio_addr(m->zone, f) + off, n);
	if (!quiet)
		folio_mark_referenced(f);
	folio_unlock(m->zone, f);
	folio_put(m->zone, f);
	return (ssize_t)n;
}

/* The folio at @pos is there but this block is not: read what the reader wants of it. invalidate_lock held shared. */
static int fill_wanted(struct inode *inode, uint64_t pos, size_t len)
{
	struct mapping *m = &inode->mapping;
	struct iomap_folio *f = mapping_get_locked(m, pos >> PAGE_SHIFT);
	unsigned first, last;
	int ret;

	if (!f)
		return 0;       /* evicted meanwhile: a miss */
	first = (unsigned)((pos - folio_pos(f)) >> m->geom.block_shift);
	last = (unsigned)((min_u64(pos + len, folio_pos(f) + folio_bytes(f)) - 1 - folio_pos(f)) >> m->geom.block_shift);
	ret = fill_blocks(inode, f, first, last - first + 1);
	if (ret && ifs_range_uptodate(f, &m->geom, first, 1))
		ret = 0;        /* the first block is good: a short count tells of the rest */
	folio_unlock(m->zone, f);
	folio_put(m->zone, f);
	return ret;
}

static uint64_t pages_of(uint64_t pos, uint64_t len) { return ((pos + len - 1) >> PAGE_SHIFT) - (pos >> PAGE_SHIFT) + 1; }

/* No folio at @pos: get one, by readahead or, where that could not, by hand. invalidate_lock held shared. */
static int fill_miss(struct iomap_file *file, uint64_t pos, size_t len, bool dontcache)
{
	struct inode *inode = file->inode;
	struct mapping *m = &inode->mapping;
	struct iomap_folio *f;
	int ret, error;

	error = readahead_miss(inode, &file->ra, pos >> PAGE_SHIFT, pages_of(pos, len), dontcache);
	f = mapping_get(m, pos >> PAGE_SHIFT);
	if (f) {
		unsigned blk;

		folio_wait_unlocked(m->zone, f);
		rcu_enter();    /* the bits may be an ifs that is on its way out */
		blk = (unsigned)((pos - folio_pos(f)) >> m->geom.block_shift);
		if (folio_mapping(f) != m || blk >= ifs_blocks(f, &m->geom) || ifs_range_uptodate(f, &m->geom, blk, 1))
			error = 0;      /* there, or gone again: look again */
		rcu_exit();
		folio_put(m->zone, f);
		return error;
	}
	if (error)
		return error;
	ret = mapping_create(m, pos >> PAGE_SHIFT, m->min_order, MAPPING_MAY_WAIT | (dontcache ? MAPPING_DROPBEHIND : 0), &f);
	if (ret == -EEXIST)
		return 0;
	if (ret)
		return ret;
	folio_unlock(m->zone, f);
	folio_put(m->zone, f);
	return 0;       /* not uptodate yet: the next look reads it */
}

static void met_mark(struct iomap_file *file, uint64_t pos, size_t len, bool dontcache)
{
	struct inode *inode = file->inode;
	struct iomap_folio *f;

	if (!rwsem_trylock_shared(&inode->mapping.invalidate_lock))
		return;         /* being cut: readahead is only a hint */
	f = mapping_get(&inode->mapping, pos >> PAGE_SHIFT);
	if (f) {
		readahead_hit_mark(inode, &file->ra, f, pages_of(pos, len), dontcache);
		folio_put(inode->mapping.zone, f);
	}
	rwsem_unlock_shared(&inode->mapping.invalidate_lock);
}

ssize_t buffered_read(struct iomap_file *file, struct iov_iter *to, uint64_t pos, int flags)
{
	struct inode *inode = file->inode;
	struct mapping *m = &inode->mapping;
	struct task *task = cache_task(file->cache);
	bool nowait = flags & IOMAP_RWF_NOWAIT, dontcache = flags & IOMAP_RWF_DONTCACHE;
	bool quiet = dontcache || load_relaxed(&file->noreuse);
	uint64_t began = pos, behind = pos;
	size_t want = to->left;
	unsigned disturbed = 0;
	bool missed = false;
	ssize_t ret = 0;
	uint64_t size;

	if (!task)
		return -ENOMEM;
	while (to->left) {
		enum look why;
		bool marked = false;
		size_t len, n;
		void *dst = iov_iter_piece(to, to->left, &len);

		n = copy_hit(m, inode, quiet ? NULL : task, dst, len, pos, &why, &marked, missed);
		if (!n && why == LOOK_DISTURBED && ++disturbed > 2) {
			ret = copy_locked(m, inode, dst, len, pos, nowait, quiet);
			if (ret < 0)
				break;
			n = (size_t)ret;
			ret = 0;
		}
		if (n) {
			if (!missed)
				task_count(task, TASK_HITS, 1);
			if (marked)
				met_mark(file, pos, to->left, dontcache);
			iov_iter_advance(to, n);
			pos += n;
			disturbed = 0;
			missed = false;
			if (dontcache)
				behind = dontcache_read_on(inode, behind, pos);
			/* It ended inside a block, so at the end of the file: what comes there now is of a later write. */
			if (n < len && pos % ifs_block_bytes(&m->geom))
				break;
			continue;
		}
		size = inode_size(inode);
		if (why == LOOK_EOF || pos >= size)
			break;
		if (why == LOOK_DISTURBED)
			continue;
		ret = -EAGAIN;
		if (nowait)
			break;
		if (!missed)
			task_count(task, TASK_MISSES, 1);
		add_relaxed(&inode->misses, 1);
		missed = true;
		len = (size_t)min_u64(to->left, size - pos);
		rwsem_lock_shared(&m->invalidate_lock);
		ret = why == LOOK_MISS ? fill_miss(file, pos, len, dontcache) : fill_wanted(inode, pos, len);
		rwsem_unlock_shared(&m->invalidate_lock);
		if (ret)
			break;
	}
	if (dontcache)
		dontcache_read_done(file, began, behind, pos, to->left);
	return want > to->left ? (ssize_t)(want - to->left) : ret;
}
