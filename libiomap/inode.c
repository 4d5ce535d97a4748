/*
 * inode.c - what all opens of one file share
 *
 * One inode a file and cache, found by (st_dev, st_ino) or (device, name) in a hash table. It outlives its last handle while
 * it has something to write; a new open joins it. Whoever drops the last reference takes it apart with the inode still in
 * the table as I_FREEING, so that an opener of the same file waits instead of meeting its own cache's lock on it.
 *
 * Invariants: refs >= handles + (I_DIRTY ? 1 : 0); nothing in flight when refs reaches 0 (the last close waits for it).
 * Locking:    cache->inode_lock for the table, references, I_NEW and I_FREEING.
 * Kernel:     fs/inode.c.
 */
#include <errno.h>
#include <string.h>
#include "inode.h"
#include "mutant.h"
#include "truncate.h"

static unsigned hash_of(const struct inode_key *key)
{
	uint64_t h = (uint64_t)key->dev * 0x9e3779b97f4a7c15 ^ (uint64_t)key->ino * 0xc2b2ae3d27d4eb4f ^ (uintptr_t)key->device;

	for (const char *c = key->name; c && *c; c++)
		h = (h ^ (unsigned char)*c) * 0x100000001b3;
	return (unsigned)(h >> 32 ^ h) % INODE_HASH;
}

static bool same_key(const struct inode_key *a, const struct inode_key *b)
{
	return a->dev == b->dev && a->ino == b->ino && a->device == b->device &&
	       (a->name == b->name || (a->name && b->name && !strcmp(a->name, b->name)));
}

static struct inode *find(struct iomap_cache *cache, const struct inode_key *key)
{
	list_for_each(it, &cache->inodes[hash_of(key)]) {
		struct inode *inode = list_entry(it, struct inode, hash);

		if (same_key(&inode->key, key))
			return inode;
	}
	return NULL;
}

static void release(struct inode *inode)
{
	struct mem *mem = &inode->cache->zone.mem;

	if (inode->key.name)
		mem_free(mem, (char *)inode->key.name, strlen(inode->key.name) + 1);
	if (inode->path)
		mem_free(mem, inode->path, strlen(inode->path) + 1);
	rwsem_fini(&inode->rwsem);
	mutex_fini(&inode->append_lock);
	mutex_fini(&inode->extend_lock);
	mutex_fini(&inode->flush_lock);
	mutex_fini(&inode->direct_lock);
	mutex_fini(&inode->time_lock);
	rangeset_fini(&inode->unflushed);
	rangeset_fini(&inode->flushing);
	rangeset_fini(&inode->lost);
	rangeset_fini(&inode->allocated);
	mem_free(mem, inode, sizeof(*inode));
}

static struct inode *make(struct iomap_cache *cache, const struct inode_key *key)
{
	struct mem *mem = &cache->zone.mem;
	struct inode *inode = mem_alloc_aligned(mem, sizeof(*inode), 64);

	if (!inode)
		return NULL;
	inode->cache = cache;
	inode->key = *key;
	inode->mapped = key->mapped;
	list_init(&inode->hash);
	list_init(&inode->wb_node);
	rwsem_init(&inode->rwsem, LOCK_INODE);
	mutex_init(&inode->append_lock, LOCK_APPEND);
	mutex_init(&inode->extend_lock, LOCK_EXTEND);
	mutex_init(&inode->flush_lock, LOCK_FLUSH);
	mutex_init(&inode->direct_lock, LOCK_LEAF);
	list_init(&inode->direct_reads);
	mutex_init(&inode->time_lock, LOCK_LEAF);
	rangeset_init(&inode->unflushed, mem, RANGESET_SUPERSET, RANGESET_MAX);
	rangeset_init(&inode->flushing, mem, RANGESET_SUPERSET, RANGESET_MAX);
	rangeset_init(&inode->lost, mem, RANGESET_SUPERSET, RANGESET_MAX);
	rangeset_init(&inode->allocated, mem, RANGESET_SUBSET, RANGESET_MAX);
	if (key->name) {
		char *name = mem_alloc(mem, strlen(key->name) + 1);

		inode->key.name = name;
		if (!name) {
			release(inode);
			return NULL;
		}
		strcpy(name, key->name);
	}
	return inode;
}

int inode_lookup(struct iomap_cache *cache, const struct inode_key *key, struct inode **out, bool *is_new)
{
	struct inode *made = NULL, *inode;

	*is_new = false;
	for (;;) {
		mutex_lock(&cache->inode_lock);
		while ((inode = find(cache, key)) && (load_relaxed(&inode->flags) & (I_NEW | I_FREEING)))
			cond_wait(&cache->inode_cond, &cache->inode_lock);
		if (inode || made)
			break;
		mutex_unlock(&cache->inode_lock);
		made = make(cache, key);
		if (!made)
			return -ENOMEM;
	}
	if (inode) {
		inode->refs++;
		add_relaxed(&inode->handles, 1);
	} else {
		inode = made;
		made = NULL;
		inode->refs = 1;
		store_relaxed(&inode->handles, 1);
		store_relaxed(&inode->flags, I_NEW);
		inode->mapping.file_id = ++cache->next_file_id;
		list_add_head(&cache->inodes[hash_of(key)], &inode->hash);
		*is_new = true;
	}
	mutex_unlock(&cache->inode_lock);
	if (made)
		release(made);
	*out = inode;
	return 0;
}

struct inode *inode_find(struct iomap_cache *cache, const struct inode_key *key)
{
	struct inode *inode;

	mutex_lock(&cache->inode_lock);
	while ((inode = find(cache, key)) && (load_relaxed(&inode->flags) & (I_NEW | I_FREEING)))
		cond_wait(&cache->inode_cond, &cache->inode_lock);
	if (inode)
		inode->refs++;
	mutex_unlock(&cache->inode_lock);
	return inode;
}

void inode_ready(struct inode *inode)
{
	struct iomap_cache *cache = inode->cache;

	mutex_lock(&cache->inode_lock);
	and_relaxed(&inode->flags, ~(unsigned)I_NEW);
	cond_broadcast(&cache->inode_cond);
	mutex_unlock(&cache->inode_lock);
}

static void unhash(struct inode *inode)
{
	struct iomap_cache *cache = inode->cache;

	mutex_lock(&cache->inode_lock);
	list_del(&inode->hash);
	cond_broadcast(&cache->inode_cond);
	mutex_unlock(&cache->inode_lock);
}

void inode_fail(struct inode *inode)
{
	if (inode->device)
		device_put(inode->device);
	unhash(inode);
	release(inode);
}

void inode_put(struct inode *inode)
{
	struct iomap_cache *cache = inode->cache;
	bool last;

	mutex_lock(&cache->inode_lock);
	IOMAP_BUG_ON(!inode->refs);
	last = !--inode->refs;
	if (last)
		or_relaxed(&inode->flags, I_FREEING);
	mutex_unlock(&cache->inode_lock);
	if (!last)
		return;
	IOMAP_BUG_ON(load_relaxed(&inode->handles) || (load_relaxed(&inode->flags) & I_DIRTY) || load_relaxed(&inode->nr_inflight));
	truncate_from(&inode->mapping, 0);
	mapping_fini(&inode->mapping);
	sub_relaxed(&inode->wb->nr_inodes, 1);
	device_put(inode->device);      /* before the table lets go: an opener must find the file's lock free */
	unhash(inode);
	release(inode);
}

/* @prev keeps its reference. */
static struct inode *next(struct iomap_cache *cache, struct inode *prev)
{
	unsigned bucket = 0;
	struct list *at;
	struct inode *found = NULL;

	mutex_lock(&cache->inode_lock);
	if (prev) {
		bucket = hash_of(&prev->key);
		at = prev->hash.next;
	} else {
		at = cache->inodes[0].next;
	}
	while (!found) {
		if (at == &cache->inodes[bucket]) {
			if (++bucket == INODE_HASH)
				break;
			at = cache->inodes[bucket].next;
			continue;
		}
		found = list_entry(at, struct inode, hash);
		at = at->next;
		if (load_relaxed(&found->flags) & (I_NEW | I_FREEING))
			found = NULL;
	}
	if (found)
		found->refs++;
	mutex_unlock(&cache->inode_lock);
	return found;
}

struct inode *inode_next(struct iomap_cache *cache, struct inode *prev)
{
	struct inode *found = next(cache, prev);

	if (prev)
		inode_put(prev);
	return found;
}

struct inode *inode_next_late(struct iomap_cache *cache, struct inode *prev)
{
	struct inode *found = next(cache, prev);

	mutex_lock(&cache->inode_lock);
	if (prev && prev->refs == 1)
		list_add_tail(&cache->late_inodes, &prev->late);        /* whoever finds it now has one of his own */
	else if (prev)
		prev->refs--;
	mutex_unlock(&cache->inode_lock);
	return found;
}

void inode_put_late(struct iomap_cache *cache)
{
	for (;;) {
		struct inode *inode = NULL;

		mutex_lock(&cache->inode_lock);
		if (!list_empty(&cache->late_inodes)) {
			inode = list_first(&cache->late_inodes, struct inode, late);
			list_del(&inode->late);
		}
		mutex_unlock(&cache->inode_lock);
		if (!inode)
			return;
		inode_put(inode);
	}
}

uint64_t inode_failures(const struct inode *inode)
{
	uint64_t failures = load_acquire(&inode->write_failures);

	/* One is under way: no count is ever the same as this. */
	return load_acquire(&inode->write_failing) && !MUTANT(M_FAILING_NOT_SEEN) ? UINT64_MAX : failures;
}

bool inode_no_failure_since(const struct inode *inode, uint64_t failures)
{
	return load_acquire(&inode->write_failures) == failures;
}

bool inode_is_clean(struct inode *inode)
{
	uint64_t size;

	if (mapping_is_marked(&inode->mapping, XA_MARK_DIRTY) || load_acquire(&inode->nr_inflight))
		return false;
	if (!inode_ends_device(inode))
		return true;
	size = inode_size(inode);
	return device_size(inode->device) == size && !device_size_unsure(inode->device);
}

bool inode_is_durable(struct inode *inode)
{
	/* In this order: what a flush takes is in flush_running before it leaves unflushed, a failure in flush_error before that ends. */
	return inode_is_clean(inode) && rangeset_empty(&inode->unflushed) && !load_acquire(&inode->size_unflushed) &&
	       !load_acquire(&inode->flush_running) && !inode_flush_error(inode);
}

int inode_flush_error(struct inode *inode)
{
	int error = load_acquire(&inode->flush_error);

	return error || rangeset_empty(&inode->lost) ? error : -EIO;
}

int inode_set_device_size(struct inode *inode, uint64_t size)
{
	int ret = device_set_size(inode->device, size);

	if (!ret)
		store_release(&inode->size_unflushed, true);
	return ret;
}

int inode_settle_device_size(struct inode *inode)
{
	return device_size_unsure(inode->device) ? inode_set_device_size(inode, device_size(inode->device)) : 0;
}

void inode_note_written(struct inode *inode, uint64_t start, uint64_t end, uint64_t flush_failures)
{
	rangeset_add(&inode->unflushed, start, end);
	if (!MUTANT(M_LATE_NOT_LOST) && load_acquire(&inode->flush_failures) != flush_failures) /* pairs with flush_once() */
		rangeset_add(&inode->lost, start, end);
}

void inode_read_begin(struct inode *inode, struct direct_read *r, uint64_t start, uint64_t end)
{
	*r = (struct direct_read){ .start = start, .end = end };
	mutex_lock(&inode->direct_lock);
	list_add_tail(&inode->direct_reads, &r->node);
	mutex_unlock(&inode->direct_lock);
}

bool inode_read_end(struct inode *inode, struct direct_read *r)
{
	mutex_lock(&inode->direct_lock);
	list_del(&r->node);
	mutex_unlock(&inode->direct_lock);
	return !r->disturbed;
}

void inode_disturb_reads(struct inode *inode, uint64_t start, uint64_t end)
{
	mutex_lock(&inode->direct_lock);
	list_for_each(it, &inode->direct_reads) {
		struct direct_read *r = list_entry(it, struct direct_read, node);

		if (start < r->end && r->start < end)
			r->disturbed = true;
	}
	mutex_unlock(&inode->direct_lock);
}

void inode_touch(struct inode *inode)
{
	mutex_lock(&inode->time_lock);
	plat_wall_time(&inode->mtime);
	mutex_unlock(&inode->time_lock);
}
