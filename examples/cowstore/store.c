/*
 * store.c - roots, commits, names: what makes many objects one store
 *
 * Metadata goes through the cache like everything else: `meta` is a file whose byte n is byte n of the device. Commit writes
 * nodes and records through it into free blocks, syncs it (which flushes the device), writes the root, syncs again. It may be
 * used from the calls only, never from a callback; that is why an open object keeps its nodes in memory.
 *
 * A commit that fails before it has written anything changes nothing and can be tried again. One that fails later may or may
 * not be on the device, so the store takes no more changes until it is opened again and looks.
 *
 * Locking: internal.h.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>
#include "internal.h"

enum { CLOSED_MAX = 64 };       /* objects that nobody uses and the cache may still know */

uint64_t cow_sum(const void *data, size_t len)
{
	return XXH3_64bits(data, len);
}

void cow_tell(struct cow_store *store, const char *format, ...)
{
	char text[512];
	va_list ap;

	if (!store->params.tell)
		return;
	va_start(ap, format);
	vsnprintf(text, sizeof(text), format, ap);
	va_end(ap);
	store->params.tell(store->params.tell_priv, text);
}

/* --- metadata --------------------------------------------------------------------------------------------- */

static void map_device(struct cow_store *store, struct iomap *map)
{
	map->addr = map->offset = 0;
	map->length = store->space.blocks << COW_SHIFT;
	map->type = IOMAP_MAPPED;
	map->flags = 0;
	map->device = NULL;
	map->priv = NULL;
	map->validity_cookie = 0;
}

static int meta_begin(void *ops_priv, uint64_t pos, uint64_t length, unsigned flags, struct iomap *map, struct iomap *src)
{
	(void)pos;
	(void)length;
	(void)flags;
	(void)src;
	map_device(ops_priv, map);
	return 0;
}

static ssize_t meta_writeback_range(struct iomap_writepage_ctx *wpc, struct iomap_folio *folio, uint64_t pos, uint64_t len,
				    uint64_t end_pos)
{
	map_device(wpc->ops_priv, &wpc->iomap);
	return iomap_add_to_ioend(wpc, folio, pos, end_pos, len);
}

static const struct iomap_ops meta_ops = { .iomap_begin = meta_begin };
static const struct iomap_writeback_ops meta_writeback_ops = { .writeback_range = meta_writeback_range };

static int meta_read(void *priv, const struct cow_ptr *ptr, void *block)
{
	struct cow_store *store = priv;

	if (ptr->blk < COW_ROOTS || ptr->blk >= store->space.blocks) {
		cow_tell(store, "a pointer leads to block %llu, which the store does not have", (unsigned long long)ptr->blk);
		return -EUCLEAN;
	}
	ssize_t n = iomap_pread(store->meta, block, COW_BLOCK, (off_t)(ptr->blk << COW_SHIFT));

	if (n != COW_BLOCK) {
		cow_tell(store, "metadata in block %llu cannot be read: %s", (unsigned long long)ptr->blk,
			 strerror(n < 0 ? (int)-n : EIO));
		return n < 0 ? (int)n : -EIO;
	}
	if (cow_sum(block, COW_BLOCK) != ptr->sum) {
		cow_tell(store, "metadata in block %llu does not match its checksum", (unsigned long long)ptr->blk);
		return -EUCLEAN;
	}
	return 0;
}

static int meta_write(void *priv, uint64_t blk, const void *block)
{
	struct cow_store *store = priv;
	ssize_t n = iomap_pwrite(store->meta, block, COW_BLOCK, (off_t)(blk << COW_SHIFT));

	return n == COW_BLOCK ? 0 : n < 0 ? (int)n : -EIO;
}

/* --- all that a root leads to ----------------------------------------------------------------------------- */

enum kind { DATA, OBJECTS, SNAPSHOTS };         /* what a tree's contents are: an object's bytes, records of objects, of snapshots */

struct tour {
	struct cow_store *store;
	/* > 0: go on below; 0: not below; < 0: an error, ends the tour. */
	int (*visit)(struct tour *tour, const struct cow_ptr *ptr, enum kind kind, unsigned level);
	struct space *space;
	uint64_t *seen, problems, metadata;
};

static int tour(struct tour *t, const struct cow_ptr *ptr, enum kind kind, unsigned level)
{
	union {
		struct cow_ptr e[COW_FANOUT];
		struct cow_record rec[COW_RECORDS];
	} block;
	int ret;

	if (!ptr->blk)
		return 0;
	if (level > COW_LEVELS || ptr->blk < COW_ROOTS || ptr->blk >= t->store->space.blocks) {
		cow_tell(t->store, "a pointer leads to block %llu of level %u, which the store does not have",
			 (unsigned long long)ptr->blk, level);
		return -EUCLEAN;
	}
	ret = t->visit(t, ptr, kind, level);
	if (ret <= 0 || (kind == DATA && !level))
		return ret < 0 ? ret : 0;
	ret = meta_read(t->store, ptr, &block);
	for (unsigned i = 0; level && i < COW_FANOUT && !ret; i++)
		ret = tour(t, &block.e[i], kind, level - 1);
	for (unsigned i = 0; !level && i < COW_RECORDS && !ret; i++)
		if (block.rec[i].name[0])
			ret = tour(t, &block.rec[i].tree.top, kind - 1, block.rec[i].tree.levels);
	return ret;
}

static int tour_root(struct tour *t, const struct cow_root *root)
{
	int ret = tour(t, &root->objects.top, OBJECTS, root->objects.levels);
	int ret2 = tour(t, &root->snapshots.top, SNAPSHOTS, root->snapshots.levels);

	return ret ? ret : ret2;
}

/* One more pointer; what is below is counted by the first. */
static int visit_count(struct tour *t, const struct cow_ptr *ptr, enum kind kind, unsigned level)
{
	if (cow_space_ref(t->space, ptr->blk))
		return 0;
	t->metadata += kind != DATA || level;
	return 1;
}

/* One pointer less; with the last, the block is free and so is what it leads to. */
static int visit_drop(struct tour *t, const struct cow_ptr *ptr, enum kind kind, unsigned level)
{
	uint32_t left;

	(void)kind;
	(void)level;
	pthread_mutex_lock(&t->store->lock);
	left = cow_space_unref(&t->store->space, ptr->blk);
	pthread_mutex_unlock(&t->store->lock);
	return left == 0;
}

/* --- roots ------------------------------------------------------------------------------------------------ */

static uint64_t root_sum(const struct cow_root *root)
{
	return cow_sum(root, offsetof(struct cow_root, sum));
}

static int root_write(struct cow_store *store, struct cow_root *root)
{
	unsigned char block[COW_BLOCK] = { 0 };

	root->sum = root_sum(root);
	memcpy(block, root, sizeof(*root));
	return meta_write(store, root->generation % COW_ROOTS, block);
}

static int format(struct cow_store *store)
{
	struct cow_root root = { .magic = COW_MAGIC, .block = COW_BLOCK, .blocks = store->space.blocks };
	unsigned char zeros[COW_BLOCK] = { 0 };
	int ret;

	/* No root of an earlier store may be newer: those go first. */
	for (unsigned i = 0; i < COW_ROOTS; i++) {
		ret = meta_write(store, i, zeros);
		if (ret)
			return ret;
	}
	ret = iomap_fsync(store->meta);
	if (!ret)
		ret = root_write(store, &root);
	return ret ? ret : iomap_fsync(store->meta);
}

/* The newest root that is whole. */
static int root_read(struct cow_store *store)
{
	bool found = false;

	for (unsigned i = 0; i < COW_ROOTS; i++) {
		unsigned char block[COW_BLOCK];
		struct cow_root root;
		ssize_t n = iomap_pread(store->meta, block, COW_BLOCK, (off_t)i << COW_SHIFT);

		if (n != COW_BLOCK)
			return n < 0 ? (int)n : -EIO;
		memcpy(&root, block, sizeof(root));
		if (memcmp(root.magic, COW_MAGIC, sizeof(root.magic)) != 0 || root.sum != root_sum(&root))
			continue;
		if (root.block != COW_BLOCK || root.blocks > store->space.blocks) {
			cow_tell(store, "the store has %llu blocks of %u bytes, and there is room for %llu of %u",
				 (unsigned long long)root.blocks, root.block, (unsigned long long)store->space.blocks, COW_BLOCK);
			return -EINVAL;
		}
		if (!found || root.generation > store->root.generation)
			store->root = root;
		found = true;
	}
	if (!found)
		cow_tell(store, "there is no root in either slot: this is not a store");
	return found ? 0 : -EINVAL;
}

/* --- open and close --------------------------------------------------------------------------------------- */

static int open_meta(struct cow_store *store)
{
	struct iomap_file_params params = IOMAP_FILE_PARAMS_INIT;

	params.block_size = COW_BLOCK;
	params.device = store->device;
	params.ops = &meta_ops;
	params.writeback_ops = &meta_writeback_ops;
	params.ops_priv = store;
	params.size = store->space.blocks << COW_SHIFT;
	return iomap_open_with(store->cache, "meta", store->params.readonly ? O_RDONLY : O_RDWR, 0, &params, &store->meta);
}

static int load(struct cow_store *store)
{
	struct tour count = { .store = store, .visit = visit_count, .space = &store->space };
	int ret;

	if (store->params.format) {
		ret = format(store);
		if (ret)
			return ret;
	}
	ret = root_read(store);
	if (ret)
		return ret;
	ret = cow_space_init(&store->space, store->root.blocks);
	if (!ret)
		ret = tour_root(&count, &store->root);
	if (!ret)
		ret = cow_catalog_load(&store->objects, &store->io, &store->root.objects);
	if (!ret)
		ret = cow_catalog_load(&store->snapshots, &store->io, &store->root.snapshots);
	return ret;
}

int cow_open(struct iomap_device *device, const struct cow_params *params, struct cow_store **out)
{
	struct iomap_cache_params cache_params = IOMAP_CACHE_PARAMS_INIT;
	struct cow_store *store = calloc(1, sizeof(*store));
	struct iomap_device_info info;
	int ret;

	if (!store)
		return -ENOMEM;
	if (params)
		store->params = *params;
	store->device = device;
	store->io = (struct tree_io) { .read = meta_read, .write = meta_write, .priv = store };
	pthread_rwlock_init(&store->api, NULL);
	pthread_mutex_init(&store->lock, NULL);
	ret = iomap_device_info(device, &info);
	store->space.blocks = info.size >> COW_SHIFT;
	if (!ret && (info.block > COW_BLOCK || store->space.blocks < 2 * COW_SLACK)) {
		cow_tell(store, "a store needs %u blocks of %u bytes or more, on a device that can write so little at a time",
			 2 * COW_SLACK, COW_BLOCK);
		ret = -EINVAL;
	}
	cache_params.memory_bytes = store->params.cache_bytes ? store->params.cache_bytes : 64 << 20;
	if (!ret)
		ret = iomap_cache_create(&store->cache, &cache_params);
	if (!ret)
		ret = open_meta(store);
	if (!ret)
		ret = load(store);
	if (ret)
		cow_close(store);
	else
		*out = store;
	return ret;
}

void cow_close(struct cow_store *store)
{
	struct cow_object *o;

	while ((o = store->open)) {
		store->open = o->next;
		cow_object_close_file(o);
		o->next = store->closed;
		store->closed = o;
	}
	if (store->meta)
		iomap_close(store->meta);
	/* What is committed is on the device; what is not need not be. */
	iomap_cache_abandon(store->cache);
	while ((o = store->closed)) {
		store->closed = o->next;
		cow_object_free(o);
	}
	cow_catalog_fini(&store->objects);
	cow_catalog_fini(&store->snapshots);
	cow_space_fini(&store->space);
	pthread_rwlock_destroy(&store->api);
	pthread_mutex_destroy(&store->lock);
	free(store);
}

/* --- objects by name -------------------------------------------------------------------------------------- */

static bool good_name(const char *name)
{
	size_t len = strlen(name);

	for (size_t i = 0; i < len; i++)
		if ((unsigned char)name[i] < ' ' || name[i] == 127 || name[i] == '@')
			return false;
	return len > 0 && len <= COW_NAME_MAX;
}

static int may_change(const struct cow_store *store)
{
	return store->params.readonly || store->broken ? -EROFS : 0;
}

/* A record of @c, with what it costs to write it promised; its name is @name. Under api. */
static int add_record(struct cow_store *store, struct catalog *c, const char *name, uint32_t *index)
{
	int ret;

	pthread_mutex_lock(&store->lock);
	ret = cow_catalog_prepare(c);
	if (!ret && !cow_space_reserve(&store->space, cow_catalog_cost(c, c->free), COW_SLACK))
		ret = -ENOSPC;
	if (!ret) {
		*index = cow_catalog_add(c, name);
		cow_catalog_touch(c, *index);
	}
	pthread_mutex_unlock(&store->lock);
	if (!ret)
		store->changed = true;
	return ret;
}

/* Takes record @index out of @c. Under api. */
static int remove_record(struct cow_store *store, struct catalog *c, uint32_t index)
{
	int ret = 0;

	pthread_mutex_lock(&store->lock);
	if (cow_space_reserve(&store->space, cow_catalog_cost(c, index), 0)) {
		cow_catalog_touch(c, index);
		cow_catalog_remove(c, index);
		store->changed = true;
	} else {
		ret = -ENOSPC;
	}
	pthread_mutex_unlock(&store->lock);
	return ret;
}

/* Objects that are closed are freed when the cache cannot ask for them any more. Under api. */
static void let_go(struct cow_store *store, unsigned more_than)
{
	struct cow_object *o;

	if (store->nr_closed <= more_than || iomap_cache_sync(store->cache))
		return;
	while ((o = store->closed)) {
		store->closed = o->next;
		cow_object_free(o);
	}
	store->nr_closed = 0;
}

/* Takes @o out of use. Under api. */
static void retire(struct cow_store *store, struct cow_object *o)
{
	struct cow_object **at = &store->open;

	while (*at != o)
		at = &(*at)->next;
	*at = o->next;
	cow_object_close_file(o);
	o->next = store->closed;
	store->closed = o;
	store->nr_closed++;
}

static struct cow_object *find_open(struct cow_store *store, uint32_t record)
{
	struct cow_object *o = store->open;

	while (o && o->record != record)
		o = o->next;
	return o;
}

static int open_snapshot_object(struct cow_store *store, const char *name, const char *snapshot, struct cow_object **out)
{
	uint32_t snap = cow_catalog_find(&store->snapshots, snapshot), index;
	struct catalog objects;
	int ret;

	if (snap == COW_NONE || !store->snapshots.rec[snap].generation)         /* 0: not committed yet */
		return -ENOENT;
	ret = cow_catalog_load(&objects, &store->io, &store->snapshots.rec[snap].tree);
	if (ret)
		return ret;
	index = cow_catalog_find(&objects, name);
	ret = index == COW_NONE ? -ENOENT : cow_object_create(store, &objects.rec[index].tree, COW_NONE, out);
	if (!ret)
		(*out)->snapshot = snap;
	cow_catalog_fini(&objects);
	return ret;
}

static int open_today(struct cow_store *store, const char *name, bool create, struct cow_object **out)
{
	uint32_t index = cow_catalog_find(&store->objects, name);
	bool added = false;
	int ret = 0;

	if (index != COW_NONE) {
		*out = find_open(store, index);
		if (*out)
			return 0;
	} else {
		if (!create)
			return -ENOENT;
		ret = may_change(store);
		if (!ret && !good_name(name))
			ret = -EINVAL;
		if (!ret)
			ret = add_record(store, &store->objects, name, &index);
		if (ret)
			return ret;
		added = true;
	}
	ret = cow_object_create(store, &store->objects.rec[index].tree, index, out);
	if (ret && added)
		remove_record(store, &store->objects, index);
	return ret;
}

int cow_object_open(struct cow_store *store, const char *name, const char *snapshot, bool create, struct cow_object **out)
{
	struct cow_object *o = NULL;
	int ret;

	pthread_rwlock_wrlock(&store->api);
	ret = snapshot ? open_snapshot_object(store, name, snapshot, &o) : open_today(store, name, create, &o);
	if (!ret && !o->handles++) {
		bool listed = false;

		for (struct cow_object *at = store->open; at && !listed; at = at->next)
			listed = at == o;
		if (!listed) {
			o->next = store->open;
			store->open = o;
		}
	}
	if (!ret)
		*out = o;
	pthread_rwlock_unlock(&store->api);
	return ret;
}

void cow_object_close(struct cow_object *o)
{
	struct cow_store *store = o->store;

	pthread_rwlock_wrlock(&store->api);
	o->handles--;
	if (!o->handles && !o->dirty) {
		retire(store, o);
		let_go(store, CLOSED_MAX);
	}
	pthread_rwlock_unlock(&store->api);
}

int cow_remove(struct cow_store *store, const char *name)
{
	int ret;

	pthread_rwlock_wrlock(&store->api);
	uint32_t index = cow_catalog_find(&store->objects, name);
	struct cow_object *o = index == COW_NONE ? NULL : find_open(store, index);

	ret = may_change(store);
	if (!ret && index == COW_NONE)
		ret = -ENOENT;
	if (!ret && o && o->handles)
		ret = -EBUSY;
	if (!ret && o) {                /* nobody wants its uncommitted bytes any more */
		ret = iomap_ftruncate(o->file, 0);
		store->changed = true;
	}
	if (!ret)
		ret = remove_record(store, &store->objects, index);
	if (!ret && o) {
		o->record = COW_NONE;
		retire(store, o);
	}
	pthread_rwlock_unlock(&store->api);
	return ret;
}

/* --- snapshots -------------------------------------------------------------------------------------------- */

int cow_snapshot(struct cow_store *store, const char *name)
{
	uint32_t index;
	int ret;

	pthread_rwlock_wrlock(&store->api);
	ret = may_change(store);
	if (!ret && !good_name(name))
		ret = -EINVAL;
	if (!ret && cow_catalog_find(&store->snapshots, name) != COW_NONE)
		ret = -EEXIST;
	if (!ret)
		ret = add_record(store, &store->snapshots, name, &index);
	pthread_rwlock_unlock(&store->api);
	return ret;
}

int cow_snapshot_remove(struct cow_store *store, const char *name)
{
	int ret;

	pthread_rwlock_wrlock(&store->api);
	uint32_t index = cow_catalog_find(&store->snapshots, name);

	ret = may_change(store);
	if (!ret && index == COW_NONE)
		ret = -ENOENT;
	for (struct cow_object *o = store->open; o && !ret; o = o->next)
		if (o->snapshot == index)
			ret = -EBUSY;
	if (!ret)
		ret = remove_record(store, &store->snapshots, index);
	pthread_rwlock_unlock(&store->api);
	return ret;
}

/* --- commit ----------------------------------------------------------------------------------------------- */

/* All of the objects' bytes are at places that the old root does not lead to. */
static int sync_objects(struct cow_store *store)
{
	int ret = 0;

	for (struct cow_object *o = store->open; o && !ret; o = o->next)
		if (o->dirty)
			ret = cow_object_sync(o);
	return ret;
}

static int enough_space(struct cow_store *store)
{
	uint64_t need = cow_catalog_count_dirty(&store->objects) + cow_catalog_count_dirty(&store->snapshots);

	for (struct cow_object *o = store->open; o; o = o->next)
		if (o->dirty)
			need += cow_tree_count_dirty(&o->tree);
	return need <= store->space.nr_free ? 0 : -ENOSPC;
}

/* Nodes and records, to free blocks; @root leads to them. */
static int write_metadata(struct cow_store *store, struct cow_root *root)
{
	int ret = 0;

	for (struct cow_object *o = store->open; o && !ret; o = o->next) {
		if (!o->dirty)
			continue;
		struct cow_record *rec = &store->objects.rec[o->record];

		ret = cow_tree_write(&o->tree, &store->io, &store->space, &store->lock, &rec->tree);
		rec->tree.size = cow_size(o);
		rec->generation = root->generation;
		rec->time = time(NULL);
	}
	if (!ret)
		ret = cow_catalog_write(&store->objects, &store->io, &store->space, &store->lock, &root->objects);
	for (uint32_t i = 0; i < store->snapshots.nr; i++) {
		struct cow_record *rec = &store->snapshots.rec[i];

		if (!rec->name[0] || rec->generation)
			continue;
		rec->tree = root->objects;
		rec->generation = root->generation;
		rec->time = time(NULL);
	}
	if (!ret)
		ret = cow_catalog_write(&store->snapshots, &store->io, &store->space, &store->lock, &root->snapshots);
	pthread_mutex_lock(&store->lock);
	if (!ret && root->objects.top.blk)
		cow_space_ref(&store->space, root->objects.top.blk);
	if (!ret && root->snapshots.top.blk)
		cow_space_ref(&store->space, root->snapshots.top.blk);
	pthread_mutex_unlock(&store->lock);
	return ret;
}

static int make_durable(struct cow_store *store, struct cow_root *root)
{
	int ret = write_metadata(store, root);

	if (!ret && store->params.bug != COW_BUG_NO_FLUSH)
		ret = iomap_fsync(store->meta);
	if (!ret)
		ret = root_write(store, root);
	if (!ret && store->params.bug != COW_BUG_LAZY_ROOT)
		ret = iomap_fsync(store->meta);
	return ret;
}

/* The new root is durable: what is in memory is what is there, and the old root's pointers are dropped. */
static void settle(struct cow_store *store, const struct cow_root *root)
{
	struct tour drop = { .store = store, .visit = visit_drop };
	struct cow_root old = store->root;

	pthread_mutex_lock(&store->lock);
	for (struct cow_object *o = store->open; o; o = o->next) {
		if (!o->dirty)
			continue;
		cow_tree_settle(&o->tree, &store->objects.rec[o->record].tree);
		o->dirty = false;
		o->seq++;
	}
	cow_tree_settle(&store->objects.tree, &root->objects);
	cow_tree_settle(&store->snapshots.tree, &root->snapshots);
	store->space.reserved = 0;
	pthread_mutex_unlock(&store->lock);
	store->root = *root;
	store->changed = false;
	if (tour_root(&drop, &old))
		cow_tell(store, "some blocks of the last commit could not be freed; the next open finds them");
}

int cow_commit(struct cow_store *store)
{
	int ret;

	pthread_rwlock_wrlock(&store->api);
	struct cow_root root = store->root;

	root.generation++;
	ret = may_change(store);
	if (ret || !store->changed)
		goto unlock;
	ret = sync_objects(store);
	if (!ret)
		ret = enough_space(store);
	if (ret)
		goto unlock;
	ret = make_durable(store, &root);
	if (ret) {
		store->broken = ret;
		cow_tell(store, "commit %llu failed half way (%s); open the store again to see what it has",
			 (unsigned long long)root.generation, strerror(-ret));
		goto unlock;
	}
	settle(store, &root);
	for (struct cow_object *o = store->open, *next; o; o = next) {
		next = o->next;
		if (!o->handles)
			retire(store, o);
	}
	let_go(store, 0);
unlock:
	pthread_rwlock_unlock(&store->api);
	return ret;
}

/* --- what is there ---------------------------------------------------------------------------------------- */

static ssize_t list(const struct catalog *c, bool sizes, struct cow_info **out)
{
	struct cow_info *info = calloc(c->used + 1, sizeof(*info));
	ssize_t n = 0;

	if (!info)
		return -ENOMEM;
	for (uint32_t i = 0; i < c->nr; i++) {
		if (!c->rec[i].name[0])
			continue;
		memcpy(info[n].name, c->rec[i].name, COW_NAME_MAX + 1);
		info[n].size = sizes ? c->rec[i].tree.size : 0;
		info[n].generation = c->rec[i].generation;
		info[n++].time = c->rec[i].time;
	}
	*out = info;
	return n;
}

ssize_t cow_list(struct cow_store *store, const char *snapshot, bool snapshots, struct cow_info **out)
{
	struct catalog objects;
	ssize_t ret;

	pthread_rwlock_wrlock(&store->api);
	if (snapshots) {
		ret = list(&store->snapshots, false, out);
	} else if (!snapshot) {
		ret = list(&store->objects, true, out);
	} else {
		uint32_t snap = cow_catalog_find(&store->snapshots, snapshot);

		ret = snap == COW_NONE ? -ENOENT : cow_catalog_load(&objects, &store->io, &store->snapshots.rec[snap].tree);
		if (!ret) {
			ret = list(&objects, true, out);
			cow_catalog_fini(&objects);
		}
	}
	pthread_rwlock_unlock(&store->api);
	return ret;
}

/* In one version of the objects no block has two uses; @seen has a bit a block. */
static int visit_once(struct tour *t, const struct cow_ptr *ptr, enum kind kind, unsigned level)
{
	uint64_t bit = 1ULL << (ptr->blk % 64);

	if (t->seen[ptr->blk / 64] & bit) {
		cow_tell(t->store, "block %llu is used twice, once as %s", (unsigned long long)ptr->blk,
			 level ? "a node" : kind == DATA ? "contents" : "records");
		t->problems++;
		return 0;
	}
	t->seen[ptr->blk / 64] |= bit;
	return 1;
}

/* The pointers counted anew are as many as the store believes. */
static int verify_counts(struct cow_store *store, uint64_t *problems)
{
	struct space space;
	struct tour count = { .store = store, .visit = visit_count, .space = &space };
	int ret = cow_space_init(&space, store->root.blocks);

	if (ret)
		return ret;
	ret = tour_root(&count, &store->root);
	for (uint64_t blk = 0; blk < space.blocks && !ret; blk++) {
		if (space.refs[blk] == store->space.refs[blk])
			continue;
		cow_tell(store, "block %llu has %u pointers, counted as %u", (unsigned long long)blk, space.refs[blk],
			 store->space.refs[blk]);
		++*problems;
	}
	if (!ret && space.nr_free != store->space.nr_free) {
		cow_tell(store, "%llu blocks are free, counted as %llu", (unsigned long long)space.nr_free,
			 (unsigned long long)store->space.nr_free);
		++*problems;
	}
	if (ret)
		++*problems;
	cow_space_fini(&space);
	return ret == -ENOMEM ? ret : 0;
}

/* One version: the objects of @snapshot, or of today. */
static int verify_version(struct cow_store *store, const char *snapshot, const struct cow_ref *ref, void *buf, size_t len,
			  uint64_t *problems)
{
	struct tour once = { .store = store, .visit = visit_once };
	struct cow_info *info;
	ssize_t n = cow_list(store, snapshot, false, &info);

	if (n < 0) {
		cow_tell(store, "the list of objects%s%s cannot be read", snapshot ? " of snapshot " : "", snapshot ? snapshot : "");
		++*problems;
		return n == -ENOMEM ? (int)n : 0;
	}
	once.seen = calloc((store->root.blocks + 63) / 64, sizeof(*once.seen));
	if (!once.seen) {
		free(info);
		return -ENOMEM;
	}
	*problems += tour(&once, &ref->top, OBJECTS, ref->levels) != 0;
	*problems += once.problems;
	free(once.seen);
	for (ssize_t i = 0; i < n; i++) {
		struct cow_object *o;
		ssize_t got = cow_object_open(store, info[i].name, snapshot, false, &o);
		uint64_t pos = 0;

		if (!got) {
			while ((got = cow_read(o, buf, len, pos)) > 0)
				pos += (uint64_t)got;
			cow_object_close(o);
		}
		if (got < 0 || pos != info[i].size) {
			cow_tell(store, "%s%s%s: byte %llu of %llu: %s", info[i].name, snapshot ? "@" : "", snapshot ? snapshot : "",
				 (unsigned long long)pos, (unsigned long long)info[i].size, got < 0 ? strerror((int)-got) : "the end");
			++*problems;
		}
	}
	free(info);
	return 0;
}

int cow_verify(struct cow_store *store)
{
	enum { CHUNK = 1 << 20 };
	uint64_t problems = 0;
	void *buf;
	int ret;

	pthread_rwlock_wrlock(&store->api);
	ret = store->changed ? -EBUSY : verify_counts(store, &problems);
	pthread_rwlock_unlock(&store->api);
	if (ret)
		return ret;
	buf = malloc(CHUNK);
	if (!buf)
		return -ENOMEM;
	ret = verify_version(store, NULL, &store->root.objects, buf, CHUNK, &problems);
	for (uint32_t i = 0; i < store->snapshots.nr && !ret; i++) {
		const struct cow_record *rec = &store->snapshots.rec[i];

		if (rec->name[0])
			ret = verify_version(store, rec->name, &rec->tree, buf, CHUNK, &problems);
	}
	free(buf);
	return ret ? ret : problems > INT32_MAX ? INT32_MAX : (int)problems;
}

int cow_stat(struct cow_store *store, struct cow_stat *out)
{
	struct space space;
	struct tour count = { .store = store, .visit = visit_count, .space = &space };
	int ret;

	pthread_rwlock_wrlock(&store->api);
	*out = (struct cow_stat) { .blocks = store->root.blocks, .generation = store->root.generation,
				   .objects = store->objects.used, .snapshots = store->snapshots.used };
	pthread_mutex_lock(&store->lock);
	out->free_blocks = store->space.nr_free;
	pthread_mutex_unlock(&store->lock);
	ret = cow_space_init(&space, store->root.blocks);
	if (!ret) {
		ret = tour_root(&count, &store->root);
		out->metadata_blocks = count.metadata + COW_ROOTS;
		cow_space_fini(&space);
	}
	pthread_rwlock_unlock(&store->api);
	return ret;
}
