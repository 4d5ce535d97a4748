/*
 * file.c - reads, writes and questions through one handle
 *
 * Public entry points of <iomap/file.h> but for opening and closing (open.c): check arguments, make one call down. A mistake
 * of the caller's is answered here, before anything changes.
 *
 * Kernel: fs/read_write.c, fs/open.c, fs/sync.c, mm/fadvise.c.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/falloc.h>
#include <string.h>
#include <unistd.h>
#include "buffered-read.h"
#include "buffered-write.h"
#include "direct-io.h"
#include "dontcache.h"
#include "fallocate.h"
#include "file.h"
#include "flusher.h"
#include "mutant.h"
#include "seek.h"
#include "sync.h"
#include "truncate.h"
#include "writeback.h"

#define IOV_MOST 1024
#define RWF_KNOWN (IOMAP_RWF_NOWAIT | IOMAP_RWF_DSYNC | IOMAP_RWF_SYNC | IOMAP_RWF_APPEND | \
		   IOMAP_RWF_DONTCACHE | IOMAP_RWF_DIRECT | IOMAP_RWF_WRITETHROUGH)
#define RWF_NOT_THROUGH (IOMAP_RWF_NOWAIT | IOMAP_RWF_DONTCACHE | IOMAP_RWF_DIRECT)    /* contradicts WRITETHROUGH */

static int usable(const struct iomap_file *file)
{
	if (!file)
		return -EINVAL;
	file_check_open(file);
	return cache_is_usable(file->cache) ? 0 : -EBADF;
}

/* @pos and @len of a call that takes a range: the end in *@end (@len 0: no end). */
static int check_range(off_t pos, off_t len, uint64_t *end)
{
	if (pos < 0 || len < 0 || len > INT64_MAX - pos)
		return -EINVAL;
	*end = len ? (uint64_t)pos + (uint64_t)len : UINT64_MAX;
	return 0;
}

/* Adds up a vector: bytes, or -errno. */
static ssize_t check_iov(const struct iovec *iov, int iovcnt, off_t pos)
{
	size_t sum = 0;

	if (iovcnt < 0 || iovcnt > IOV_MOST || pos < 0)
		return -EINVAL;
	if (!iov && iovcnt)
		return -EFAULT;
	for (int i = 0; i < iovcnt; i++) {
		if (iov[i].iov_len > (size_t)SSIZE_MAX - sum)
			return -EINVAL;
		sum += iov[i].iov_len;
	}
	if (sum > (uint64_t)INT64_MAX - (uint64_t)pos)
		return -EINVAL;
	for (int i = 0; i < iovcnt; i++)
		if (!iov[i].iov_base && iov[i].iov_len)
			return -EFAULT;
	return (ssize_t)sum;
}

/* --- bytes ------------------------------------------------------------------------------------------------ */

ssize_t iomap_preadv2(struct iomap_file *file, const struct iovec *iov, int iovcnt, off_t pos, int flags)
{
	struct iov_iter to;
	ssize_t len;
	int ret = usable(file);

	if (ret)
		return ret;
	if (flags & ~RWF_KNOWN)
		return -EOPNOTSUPP;
	len = check_iov(iov, iovcnt, pos);
	if (len < 0)
		return len;
	if (!file->readable)
		return -EBADF;
	if (!len)
		return 0;
	iov_iter_init(&to, iov, iovcnt, (size_t)len);
	if (flags & IOMAP_RWF_DIRECT)
		return direct_read(file, &to, (uint64_t)pos, flags & IOMAP_RWF_NOWAIT);
	return buffered_read(file, &to, (uint64_t)pos, flags);
}

ssize_t iomap_pread(struct iomap_file *file, void *buf, size_t len, off_t pos)
{
	struct iovec iov = { buf, len };

	return iomap_preadv2(file, &iov, 1, pos, 0);
}

ssize_t iomap_pwritev2(struct iomap_file *file, const struct iovec *iov, int iovcnt, off_t pos, int flags)
{
	struct inode *inode;
	struct iov_iter from;
	uint64_t start, end;
	bool append, nowait;
	ssize_t len, wrote;
	int ret = usable(file);

	if (ret)
		return ret;
	if (flags & ~RWF_KNOWN)
		return -EOPNOTSUPP;
	if ((flags & IOMAP_RWF_WRITETHROUGH) && (flags & RWF_NOT_THROUGH))
		return -EINVAL;
	append = file->append || (flags & IOMAP_RWF_APPEND);
	nowait = flags & IOMAP_RWF_NOWAIT;
	if (append)
		pos = 0;
	len = check_iov(iov, iovcnt, pos);
	if (len < 0)
		return len;
	if (!file->writable)
		return -EBADF;
	if (!len)
		return 0;
	inode = file->inode;
	iov_iter_init(&from, iov, iovcnt, (size_t)len);
	if (append && !MUTANT(M_APPEND_NO_LOCK)) {
		if (!nowait)
			mutex_lock(&inode->append_lock);
		else if (!mutex_trylock(&inode->append_lock))
			return -EAGAIN;
	}
	if (flags & IOMAP_RWF_DIRECT)
		wrote = direct_write(file, &from, (uint64_t)pos, append, nowait, &end);
	else if (flags & IOMAP_RWF_WRITETHROUGH)
		wrote = buffered_write_through(file, &from, (uint64_t)pos, append, &end);
	else
		wrote = buffered_write(file, &from, (uint64_t)pos, flags | (append ? IOMAP_RWF_APPEND : 0), &end);
	if (append && !MUTANT(M_APPEND_NO_LOCK))
		mutex_unlock(&inode->append_lock);
	if (wrote <= 0)
		return wrote;
	if (file->dsync || file->sync || (flags & (IOMAP_RWF_DSYNC | IOMAP_RWF_SYNC))) {
		start = end - (uint64_t)wrote;
		ret = sync_inode(inode, start, end, !(file->sync || (flags & IOMAP_RWF_SYNC)));
		if (!ret && (file->sync || (flags & IOMAP_RWF_SYNC)))
			ret = sync_name(inode);
		if (ret)
			return ret;
		ret = file_write_error(file);
		if (ret && inode->cache->error_policy == IOMAP_ERROR_DROP)
			return ret;
	} else if (flags & IOMAP_RWF_DONTCACHE) {
		dontcache_wrote(inode, end - (uint64_t)wrote, end, nowait);
	}
	return wrote;
}

ssize_t iomap_pwrite(struct iomap_file *file, const void *buf, size_t len, off_t pos)
{
	struct iovec iov = { (void *)(uintptr_t)buf, len };

	return iomap_pwritev2(file, &iov, 1, pos, 0);
}

int iomap_ftruncate(struct iomap_file *file, off_t size)
{
	int ret = usable(file);

	if (ret)
		return ret;
	if (size < 0 || !file->writable)
		return -EINVAL;
	return buffered_truncate(file->inode, (uint64_t)size);
}

/* --- durability ------------------------------------------------------------------------------------------- */

int file_write_error(struct iomap_file *file)
{
	struct inode *inode = file->inode;
	int ret;

	if (inode->cache->error_policy == IOMAP_ERROR_KEEP_DIRTY) {
		ret = writeback_failed(inode, 0, UINT64_MAX);
		return ret ? ret : inode_flush_error(inode);
	}
	mutex_lock(&file->error_lock);
	ret = errseq_check_and_advance(&inode->wb_err, &file->since);
	mutex_unlock(&file->error_lock);
	return ret;
}

static int sync_file(struct iomap_file *file, bool metadata)
{
	int ret = usable(file), seen;

	if (ret)
		return ret;
	ret = sync_inode(file->inode, 0, UINT64_MAX, !metadata);
	if (metadata && !ret)
		ret = sync_name(file->inode);
	if (file->inode->cache->error_policy == IOMAP_ERROR_DROP) {
		seen = file_write_error(file);
		ret = ret ? ret : seen;
	}
	return ret;
}

int iomap_fsync(struct iomap_file *file) { return sync_file(file, true); }

int iomap_fdatasync(struct iomap_file *file) { return sync_file(file, false); }

int iomap_fallocate(struct iomap_file *file, int mode, off_t pos, off_t len)
{
	uint64_t end;
	int ret = usable(file);

	if (!ret)
		ret = check_range(pos, len, &end);
	if (ret || !len)
		return ret ? ret : -EINVAL;
	switch (mode) {
	case 0:
	case FALLOC_FL_KEEP_SIZE:
	case FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE:
	case FALLOC_FL_ZERO_RANGE:
	case FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE:
		break;
	default:
		return -EOPNOTSUPP;
	}
	if (!file->writable)
		return -EBADF;
	ret = fallocate_range(file, mode, (uint64_t)pos, end);
	if (!ret && (file->dsync || file->sync))
		ret = sync_file(file, file->sync);
	return ret;
}

int iomap_sync_range(struct iomap_file *file, off_t pos, off_t len, unsigned flags)
{
	const unsigned all = IOMAP_SYNC_WAIT_BEFORE | IOMAP_SYNC_WRITE | IOMAP_SYNC_WAIT_AFTER;
	struct inode *inode;
	uint64_t start, end;
	int ret = usable(file), seen;

	if (!ret)
		ret = check_range(pos, len, &end);
	if (!ret && (flags & ~(all | IOMAP_SYNC_DURABLE)))
		ret = -EINVAL;
	if (ret || !flags)
		return ret;
	inode = file->inode;
	start = (uint64_t)pos;
	if (flags & IOMAP_SYNC_DURABLE) {
		ret = sync_inode(inode, start, end, true);
	} else if ((flags & all) == (IOMAP_SYNC_WRITE | IOMAP_SYNC_WAIT_AFTER) || (flags & all) == all) {
		ret = writeback_range_sync(inode, start, end);
		flusher_check_clean(inode);
	} else {
		if (flags & IOMAP_SYNC_WAIT_BEFORE)
			writeback_wait_range(inode, start, end);
		if (flags & IOMAP_SYNC_WRITE)
			writeback_start_range(inode, start, end);
		if (flags & IOMAP_SYNC_WAIT_AFTER)
			writeback_wait_range(inode, start, end);
		if (flags & (IOMAP_SYNC_WAIT_BEFORE | IOMAP_SYNC_WAIT_AFTER))
			ret = writeback_failed(inode, start, end);
	}
	if (inode->cache->error_policy == IOMAP_ERROR_DROP && flags != IOMAP_SYNC_WRITE) {
		seen = file_write_error(file);
		ret = ret ? ret : seen;
	}
	return ret;
}

/* A list of ranges being built; more are counted than fit. */
struct range_list { struct iomap_failed_range *out, last; unsigned max, nr; };

static void list_range(struct range_list *l, uint64_t pos, uint64_t len, int error, unsigned tries, unsigned flags)
{
	struct iomap_failed_range *last = &l->last;

	if (l->nr && last->pos + last->len == pos && last->error == error && last->tries == tries && last->flags == flags) {
		last->len += len;
	} else {
		l->nr++;
		*last = (struct iomap_failed_range){ pos, len, error, tries, flags };
	}
	if (l->nr <= l->max)
		l->out[l->nr - 1] = *last;
}

static void list_failed(struct inode *inode, struct range_list *l, uint64_t start, uint64_t end)
{
	struct mapping *m = &inode->mapping;
	uint64_t bs = ifs_block_bytes(&m->geom);
	pgoff_t at = start >> PAGE_SHIFT, last = (end - 1) >> PAGE_SHIFT;
	struct iomap_folio *f;

	if (start >= end)
		return;
	while (at <= last && (f = mapping_next_marked(m, &at, last, XA_MARK_DIRTY))) {
		folio_lock(m->zone, f);
		at += folio_pages(f);
		for (unsigned b = 0; folio_mapping(f) == m && b < ifs_blocks(f, &m->geom); b++) {
			uint64_t pos = folio_pos(f) + b * bs;

			if (pos >= start && pos < end && ifs_block_set(f, &m->geom, IFS_FAILED, b))
				list_range(l, pos, bs, f->error, f->tries, 0);
		}
		folio_unlock(m->zone, f);
		folio_put(m->zone, f);
	}
}

int iomap_failed_ranges(struct iomap_file *file, struct iomap_failed_range *out, unsigned max)
{
	struct range_list l = { .out = out, .max = max };
	struct inode *inode;
	struct range lost;
	uint64_t at = 0;
	int ret = usable(file), error;

	if (ret)
		return ret;
	if (!out && max)
		return -EINVAL;
	inode = file->inode;
	rwsem_lock_shared(&inode->rwsem);
	error = inode_flush_error(inode);
	while (rangeset_next(&inode->lost, at, &lost)) {
		list_failed(inode, &l, at, lost.start);
		list_range(&l, lost.start, lost.end - lost.start, error ? error : -EIO, 1, IOMAP_FAILED_FLUSH);
		at = lost.end;
	}
	list_failed(inode, &l, at, UINT64_MAX);
	rwsem_unlock_shared(&inode->rwsem);
	return (int)min_u64(l.nr, INT_MAX);
}

int iomap_resolve(struct iomap_file *file, off_t pos, off_t len, enum iomap_resolution how)
{
	uint64_t end;
	int ret = usable(file);

	if (!ret)
		ret = check_range(pos, len, &end);
	if (ret)
		return ret;
	if (how != IOMAP_RESOLVE_RETRY && how != IOMAP_RESOLVE_DISCARD)
		return -EINVAL;
	if (!file->writable)
		return -EBADF;
	if (how == IOMAP_RESOLVE_RETRY)
		return sync_retry(file->inode, (uint64_t)pos, end);
	rwsem_lock(&file->inode->rwsem);
	sync_discard(file->inode, (uint64_t)pos, end);
	rwsem_unlock(&file->inode->rwsem);
	return 0;
}

/* --- questions and hints ---------------------------------------------------------------------------------- */

static void will_need(struct iomap_file *file, uint64_t pos, uint64_t end)
{
	struct mapping *m = &file->inode->mapping;
	uint64_t size = inode_size(file->inode);

	end = min_u64(end, size);
	if (pos >= end || !rwsem_trylock_shared(&m->invalidate_lock))
		return;
	readahead_force(file->inode, &file->ra, pos >> PAGE_SHIFT, div_round_up(end, PAGE_BYTES) - (pos >> PAGE_SHIFT));
	rwsem_unlock_shared(&m->invalidate_lock);
}

static void dont_need(struct iomap_file *file, uint64_t pos, uint64_t end)
{
	struct inode *inode = file->inode;
	uint64_t size = inode_size(inode), first = div_round_up(pos, PAGE_BYTES), last;

	flusher_write_range(inode, pos, min_u64(end, round_up(size, ifs_block_bytes(&inode->mapping.geom))));
	/* Partial pages are kept, but for the file's last. */
	last = end >= size ? UINT64_MAX >> PAGE_SHIFT : end / PAGE_BYTES - 1;
	if ((end >= PAGE_BYTES || end >= size) && first <= last)
		invalidate_clean(&inode->mapping, first, last);
}

int iomap_fadvise(struct iomap_file *file, off_t pos, off_t len, int advice)
{
	uint64_t end;
	uint32_t pages;
	int ret = usable(file);

	if (!ret)
		ret = check_range(pos, len, &end);
	if (ret)
		return ret;
	pages = readahead_pages(file->cache);
	switch (advice) {
	case POSIX_FADV_NORMAL:
	case POSIX_FADV_SEQUENTIAL:
	case POSIX_FADV_RANDOM:
		if (advice == POSIX_FADV_NORMAL)
			store_relaxed(&file->noreuse, false);
		mutex_lock(&file->ra.lock);
		file->ra.ra.random = advice == POSIX_FADV_RANDOM;
		if (advice != POSIX_FADV_RANDOM)
			file->ra.ra.ra_pages = advice == POSIX_FADV_SEQUENTIAL ? 2 * pages : pages;
		mutex_unlock(&file->ra.lock);
		return 0;
	case POSIX_FADV_WILLNEED:
		will_need(file, (uint64_t)pos, end);
		return 0;
	case POSIX_FADV_DONTNEED:
		dont_need(file, (uint64_t)pos, end);
		return 0;
	case POSIX_FADV_NOREUSE:
		store_relaxed(&file->noreuse, true);
		return 0;
	}
	return -EINVAL;
}

off_t iomap_size(struct iomap_file *file)
{
	int ret = usable(file);

	return ret ? ret : (off_t)inode_size(file->inode);
}

off_t iomap_lseek(struct iomap_file *file, off_t pos, int whence)
{
	off_t size = iomap_size(file);
	uint64_t out = 0;
	int ret;

	if (size < 0)
		return size;
	if (whence == SEEK_DATA || whence == SEEK_HOLE) {
		if (pos < 0)
			return -ENXIO;
		rwsem_lock_shared(&file->inode->rwsem);
		ret = seek_from(file->inode, (uint64_t)pos, whence, &out);
		rwsem_unlock_shared(&file->inode->rwsem);
		return ret ? ret : (off_t)out;
	}
	if (whence != SEEK_END || pos < -size)
		return -EINVAL;
	if (pos > INT64_MAX - size)
		return -EOVERFLOW;
	return size + pos;
}

/* What this cache knows better than the file system. */
static void overlay(struct inode *inode, struct stat *st)
{
	uint64_t size = inode_size(inode);

	if (!inode->fixed_size)
		st->st_size = (off_t)size;
	mutex_lock(&inode->time_lock);
	if (inode->mtime.tv_sec)
		st->st_mtim = inode->mtime;
	mutex_unlock(&inode->time_lock);
}

int iomap_fstat(struct iomap_file *file, struct stat *st)
{
	struct inode *inode;
	int ret = usable(file);

	if (ret)
		return ret;
	if (!st)
		return -EINVAL;
	inode = file->inode;
	memset(st, 0, sizeof(*st));
	if (inode->device->file) {
		ret = inode->device->file->fstat(inode->device, st);
		if (ret)
			return ret;
	} else {
		st->st_mode = S_IFREG;
		st->st_size = (off_t)inode_size(inode);
	}
	st->st_blksize = (blksize_t)ifs_block_bytes(&inode->mapping.geom);
	overlay(inode, st);
	return 0;
}

int iomap_stat(struct iomap_cache *cache, const char *path, struct stat *st)
{
	struct inode_key key = { 0 };
	struct inode *inode;
	int ret;

	if (!cache || !path || !st)
		return -EINVAL;
	if (!cache_is_usable(cache))
		return -EBADF;
	ret = plat_stat(path, st);
	if (ret)
		return ret;
	key.dev = S_ISBLK(st->st_mode) ? st->st_rdev : st->st_dev;
	key.ino = S_ISBLK(st->st_mode) ? 0 : st->st_ino;
	inode = inode_find(cache, &key);
	if (inode) {
		overlay(inode, st);
		inode_put(inode);
	}
	return 0;
}

int iomap_fd(struct iomap_file *file)
{
	int ret = usable(file);

	if (ret)
		return ret;
	return file->inode->device->file ? file->inode->device->file->fd(file->inode->device) : -ENOTTY;
}
