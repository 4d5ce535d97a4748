/*
 * open.c - from a path or a device to a handle, and back
 *
 * An inode is looked up by what the path leads to; only if this cache does not have it yet are a descriptor kept, the file
 * claimed and a mapping set up, with the inode in the table as I_NEW so that a second opener waits. Checks come before anything
 * is created; what fails later is undone, but for a file that O_CREAT has made.
 *
 * Locking: inode_lock inside inode_lookup() and friends; nothing is held over a system call.
 * Kernel:  fs/open.c, fs/namei.c as far as one file goes.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include "bug.h"
#include "buffered-write.h"
#include "dontcache.h"
#include "endio.h"
#include "file.h"
#include "flusher.h"
#include "ioend.h"
#include "iter.h"
#include "params.h"
#include "reclaim.h"
#include "space.h"
#include "sync.h"
#include "truncate.h"
#include "writeback.h"

#define KNOWN_OFLAGS (O_ACCMODE | O_CREAT | O_EXCL | O_TRUNC | O_APPEND | O_DSYNC | O_SYNC | O_CLOEXEC | O_LARGEFILE | O_NOFOLLOW)

static bool wants_write(int oflags) { return (oflags & O_ACCMODE) != O_RDONLY; }

static int check_params(const struct iomap_file_params *p, int oflags)
{
	if (p->ops ? !p->ops->iomap_begin || !p->device || p->size > INT64_MAX : p->writeback_ops || p->ops_priv || p->size)
		return -EINVAL;
	if (p->ops && wants_write(oflags) && (!p->writeback_ops || !p->writeback_ops->writeback_range))
		return -EINVAL;
	if (p->block_size && (!is_pow2(p->block_size) || p->block_size < 512 || p->block_size > 65536))
		return -EINVAL;
	if (p->flags & ~(IOMAP_OPEN_SHARED | IOMAP_OPEN_UNSTABLE))
		return -EINVAL;
	if ((oflags & ~KNOWN_OFLAGS) || (oflags & O_ACCMODE) == O_ACCMODE)
		return -EINVAL;
	return 0;
}

/* What kind of thing a path leads to: 0 if we can cache it. */
static int check_kind(mode_t mode)
{
	if (S_ISDIR(mode))
		return -EISDIR;
	if (!S_ISREG(mode) && !S_ISBLK(mode))
		return -ENODEV;
	return 0;
}

/* Opens the O_DIRECT descriptor. *created: the file was not there before. */
static int open_fd(struct iomap_cache *cache, const char *path, int oflags, mode_t mode, int *fd, bool *created)
{
	int flags = (wants_write(oflags) ? O_RDWR : O_RDONLY) | (oflags & (O_CREAT | O_EXCL | O_NOFOLLOW)) | O_DIRECT | O_CLOEXEC;
	struct stat st;
	int ret = plat_stat(path, &st);

	*created = ret == -ENOENT && (oflags & O_CREAT);
	if (!ret)       /* a fifo's open would wait for a writer */
		ret = check_kind(st.st_mode);
	else if (*created)
		ret = 0;
	if (ret)
		return ret;
	ret = plat_open(path, flags, mode);
	if (ret == -EINVAL) {
		cache_log(cache, IOMAP_LOG_ERR, "%s: its file system cannot do O_DIRECT; use a file on another one", path);
		return -EOPNOTSUPP;
	}
	if (ret < 0)
		return ret;
	*fd = ret;
	return 0;
}

static unsigned default_block_shift(const struct iomap_device *dev)
{
	return log2_ceil(max_u64(PAGE_BYTES, max_u64(dev->info.block, dev->info.mem_align)));
}

/* Block size as asked for, or the default: its shift, or -EINVAL. */
static int block_shift_for(const struct iomap_device *dev, uint32_t asked)
{
	if (!asked)
		return (int)min_u64(default_block_shift(dev), 16);
	if (asked < dev->info.block || asked < dev->info.mem_align)
		return -EINVAL;
	return (int)log2_floor(asked);
}

/* A new inode gets device, backing device and mapping. Takes @dev's reference on success. */
static int set_up(struct inode *inode, struct iomap_device *dev, dev_t st_dev, struct iomap_device *engine,
		  const struct iomap_file_params *p)
{
	static const uint8_t granules[] = { GRANULE_BLOCK, GRANULE_PAGE, GRANULE_FOLIO };
	struct iomap_cache *cache = inode->cache;
	int shift = block_shift_for(dev, p->block_size), ret;
	struct ifs_geometry geom;
	struct wb *wb;

	if (shift < 0)
		return shift;
	ret = cache_wb_for(cache, st_dev, engine, &wb);
	if (ret)
		return ret;
	geom = (struct ifs_geometry){ .block_shift = (uint8_t)shift, .granule = granules[cache->accounting] };
	inode->device = dev;
	inode->wb = wb;
	inode->ops = p->ops ? p->ops : &plain_ops;
	inode->ops_priv = p->ops ? p->ops_priv : inode;
	inode->wb_ops = p->writeback_ops;
	inode->fixed_size = !p->ops && device_fixed_size(dev);
	inode->unstable = p->flags & IOMAP_OPEN_UNSTABLE;
	mapping_init(&inode->mapping, &cache->zone, wb, &reclaim_mapping_ops, cache, geom, load_relaxed(&cache->max_order));
	inode->mapping.low_bytes = cache->reclaim.low_bytes;
	inode_set_size(inode, p->ops ? p->size : device_size(dev));
	space_learn(inode);
	return 0;
}

static int own_path(struct inode *inode, const char *path)
{
	char *copy = mem_alloc(&inode->cache->zone.mem, strlen(path) + 1);

	if (!copy)
		return -ENOMEM;
	strcpy(copy, path);
	inode->path = copy;
	return 0;
}

/* --- kernel files ----------------------------------------------------------------------------------------- */

static int open_kernel_file(struct iomap_cache *cache, const char *path, int oflags, mode_t mode,
			    const struct iomap_file_params *p, struct inode **out, bool *is_new)
{
	struct inode_key key = { 0 };
	struct iomap_device *dev = NULL;
	struct inode *inode;
	struct wb *wb;
	struct stat st;
	bool created;
	int fd, ret;

	ret = open_fd(cache, path, oflags, mode, &fd, &created);
	if (ret)
		return ret;
	ret = plat_fstat(fd, &st);
	if (!ret)
		ret = check_kind(st.st_mode);
	if (ret)
		goto close;
	key.dev = S_ISBLK(st.st_mode) ? st.st_rdev : st.st_dev;
	key.ino = S_ISBLK(st.st_mode) ? 0 : st.st_ino;
	ret = inode_lookup(cache, &key, &inode, is_new);
	if (ret)
		goto close;
	*out = inode;
	if (!*is_new) {
		plat_close(fd);
		return 0;
	}
	/* Its own backing device's queue carries the device's requests. */
	ret = cache_wb_for(cache, key.dev, NULL, &wb);
	if (!ret) {
		ret = device_aio_create(wb->aio, fd, &dev);
		if (ret == -EOPNOTSUPP)
			cache_log(cache, IOMAP_LOG_ERR, "%s: its file system cannot do O_DIRECT; use a file on another one", path);
		if (!ret) {
			fd = -1;
			if (!(p->flags & IOMAP_OPEN_SHARED))
				ret = dev->file->claim(dev);
		}
		if (!ret)
			ret = own_path(inode, path);
		if (!ret)
			ret = set_up(inode, dev, key.dev, NULL, p);
		sub_relaxed(&wb->nr_inodes, 1);
	}
	if (ret) {
		inode->device = dev;    /* inode_fail() puts it */
		inode_fail(inode);
		goto close;
	}
	store_relaxed(&inode->writable, wants_write(oflags));
	inode->created = created;
	return 0;
close:
	if (fd >= 0)
		plat_close(fd);
	return ret;
}

/* --- an engine's device ----------------------------------------------------------------------------------- */

static int open_on_device(struct iomap_cache *cache, const char *name, const struct iomap_file_params *p, struct inode **out,
			  bool *is_new)
{
	struct inode_key key = { .device = p->device, .name = name, .mapped = p->ops };
	struct inode *inode;
	int ret = device_claim(p->device, cache);

	if (ret)
		return ret;
	/* Where file offset = device offset, a device holds one file. */
	mutex_lock(&cache->inode_lock);
	for (unsigned i = 0; !ret && i < INODE_HASH; i++)
		list_for_each(it, &cache->inodes[i]) {
			struct inode *other = list_entry(it, struct inode, hash);

			if (other->key.device == p->device && !(p->ops && other->mapped) &&
			    (!other->key.name != !name || (name && strcmp(other->key.name, name))))
				ret = -EINVAL;
		}
	mutex_unlock(&cache->inode_lock);
	if (!ret)
		ret = inode_lookup(cache, &key, &inode, is_new);
	if (ret)
		return ret;
	*out = inode;
	if (!*is_new)
		return 0;
	if (p->device->file && !(p->flags & IOMAP_OPEN_SHARED))
		ret = p->device->file->claim(p->device);
	if (!ret && p->writeback_ops && p->writeback_ops->end_io)
		ret = endio_start(cache);
	inode->device = device_get(p->device);  /* inode_fail() puts it */
	if (!ret)
		ret = set_up(inode, p->device, 0, p->device, p);
	if (ret) {
		inode_fail(inode);
		return ret;
	}
	store_relaxed(&inode->writable, true);
	return 0;
}

/* --- open, close ------------------------------------------------------------------------------------------ */

/* May a file that is open already be opened so once more? */
static int check_second(struct inode *inode, const char *path, int oflags, const struct iomap_file_params *p)
{
	int ret = 0;

	if (p->block_size && p->block_size != ifs_block_bytes(&inode->mapping.geom))
		return -EBUSY;
	if (p->ops && (p->ops != inode->ops || p->ops_priv != inode->ops_priv ||
		       (p->writeback_ops && p->writeback_ops != inode->wb_ops)))
		return -EBUSY;
	if (inode->mapped && wants_write(oflags) && !inode->wb_ops)
		return -EBUSY;          /* opened without a way to write */
	if ((p->flags & IOMAP_OPEN_UNSTABLE) && !inode->unstable)
		return -EBUSY;
	if (wants_write(oflags) && !load_relaxed(&inode->writable) && inode->device->file) {
		ret = inode->device->file->make_writable(inode->device, path);
		if (!ret)
			store_relaxed(&inode->writable, true);
	}
	return ret;
}

static void drop_handle(struct inode *inode)
{
	bool last;

	mutex_lock(&inode->cache->inode_lock);
	last = sub_relaxed(&inode->handles, 1) == 1;
	mutex_unlock(&inode->cache->inode_lock);
	if (last && !inode_is_durable(inode))
		flusher_linger(inode);
	flusher_check_clean(inode);
	inode_put(inode);
}

static struct iomap_file *make_handle(struct inode *inode, int oflags)
{
	struct iomap_cache *cache = inode->cache;
	struct iomap_file *file = mem_alloc(&cache->zone.mem, sizeof(*file));

	if (!file)
		return NULL;
	file->inode = inode;
	file->cache = cache;
	file->readable = (oflags & O_ACCMODE) != O_WRONLY;
	file->writable = wants_write(oflags);
	file->append = oflags & O_APPEND;
	file->dsync = oflags & O_DSYNC;
	file->sync = (oflags & O_SYNC) == O_SYNC;
	store_relaxed(&file->noreuse, false);
	store_relaxed(&file->behind_pos, UINT64_MAX);
	readahead_init(&file->ra, readahead_pages(cache));
	mutex_init(&file->error_lock, LOCK_LEAF);
	file->since = errseq_sample(&inode->wb_err);
	mutex_lock(&cache->inode_lock);
	cache->nr_handles++;
	mutex_unlock(&cache->inode_lock);
	return file;
}

int iomap_open_with(struct iomap_cache *cache, const char *path, int oflags, mode_t mode,
		    const struct iomap_file_params *params, struct iomap_file **out)
{
	static const struct iomap_file_params defaults;
	struct iomap_file_params p;
	struct iomap_file *file;
	struct inode *inode;
	bool is_new;
	int ret;

	if (!cache || !out)
		return -EINVAL;
	if (!cache_is_usable(cache))
		return -EBADF;
	ret = params_copy(&p, sizeof(p), params ? params : &defaults, sizeof(p));
	if (!ret)
		ret = check_params(&p, oflags);
	if (!ret && !p.device && !path)
		ret = -EINVAL;
	if (ret)
		return ret;
	cache_reap_wbs(cache);
	if (p.device)
		ret = open_on_device(cache, path, &p, &inode, &is_new);
	else
		ret = open_kernel_file(cache, path, oflags, mode, &p, &inode, &is_new);
	if (ret)
		return ret;
	if (is_new)
		inode_ready(inode);
	else
		ret = check_second(inode, path, oflags, &p);
	if (!ret && (oflags & O_TRUNC) && wants_write(oflags) && !inode->fixed_size)
		ret = buffered_truncate(inode, 0);
	file = ret ? NULL : make_handle(inode, oflags);
	if (!file) {
		drop_handle(inode);
		cache_reap_wbs(cache);
		return ret ? ret : -ENOMEM;
	}
	*out = file;
	return 0;
}

int iomap_open(struct iomap_cache *cache, const char *path, int oflags, mode_t mode, struct iomap_file **out)
{
	return iomap_open_with(cache, path, oflags, mode, NULL, out);
}

/* The last handle of a file that has no name any more: nobody will ever read what is dirty. */
static void cancel_if_unlinked(struct inode *inode)
{
	struct stat st;

	if (!inode->device->file || inode->device->file->fstat(inode->device, &st) || st.st_nlink)
		return;
	rwsem_lock(&inode->rwsem);
	rwsem_lock(&inode->mapping.invalidate_lock);
	truncate_from(&inode->mapping, 0);
	inode_set_size(inode, device_size(inode->device));
	sync_forget(inode);
	rwsem_unlock(&inode->mapping.invalidate_lock);
	rwsem_unlock(&inode->rwsem);
}

void file_check_open(const struct iomap_file *file)
{
#ifdef IOMAP_DEBUG
	char what[100];

	if (!load_relaxed(&file->closed))
		return;
	snprintf(what, sizeof(what), "file handle %p is used after iomap_close()", (const void *)file);
	bug_report(__FILE__, __LINE__, what);
#else
	(void)file;
#endif
}

/* Memory that no handle needs any more; in checked builds that of an older one. */
static struct iomap_file *retire(struct iomap_cache *cache, struct iomap_file *file)
{
#ifdef IOMAP_DEBUG
	struct iomap_file **slot, *old;

	store_relaxed(&file->closed, true);
	mutex_lock(&cache->inode_lock);
	slot = &cache->closed[cache->next_closed++ % FILES_KEPT];
	old = *slot;
	*slot = file;
	mutex_unlock(&cache->inode_lock);
	return old;
#else
	(void)cache;
	return file;
#endif
}

static void free_handle(struct iomap_file *file)
{
	struct iomap_cache *cache = file->cache;

	readahead_fini(&file->ra);
	mutex_fini(&file->error_lock);
	mem_free(&cache->zone.mem, retire(cache, file), sizeof(*file));
	cache_handle_closed(cache);
}

int iomap_close(struct iomap_file *file)
{
	struct inode *inode;
	int ret;

	if (!file)
		return -EINVAL;
	file_check_open(file);
	if (!*file->cache->alive)
		return -EBADF;          /* a forked child: the memory is its parent's business */
	if (load_acquire(&file->cache->abandoned)) {
		free_handle(file);
		return -EBADF;
	}
	inode = file->inode;
	dontcache_close(file);
	ret = file_write_error(file);
	if (load_relaxed(&inode->handles) == 1) {
		cancel_if_unlinked(inode);
		ioend_wait_idle(inode);
		rwsem_lock(&inode->rwsem);      /* somebody may open and write it just now */
		mutex_lock(&inode->extend_lock);
		if (inode_is_clean(inode))
			space_trim(inode);
		mutex_unlock(&inode->extend_lock);
		rwsem_unlock(&inode->rwsem);
	}
	drop_handle(inode);
	cache_reap_wbs(file->cache);
	free_handle(file);
	return ret;
}
