/*
 * object.c - where the bytes of one object are: the callbacks that libiomap asks, and the calls that use them
 *
 * A block's way from a write to the next commit:
 *
 *      write         iomap_begin(WRITE)     RESERVED    one free block is promised; the old contents are the source
 *      writeback     writeback_range()      PLACED      the cache writes the block out, so now it gets a place
 *      completion    end_io()               OWNED       the bytes are there: the pointer moves
 *      commit        cow_tree_settle()          -           a root leads there: from now on it is not overwritten
 *
 * A block that is written again while it is OWNED goes to the same place: no root leads there, so a crash cannot show it.
 *
 * Checksums are made when bytes are written, from the caller's buffer; for parts of blocks (STALE) at the commit, from the cache.
 *
 * Locking: the callbacks take store->lock alone and call nothing of libiomap but iomap_add_to_ioend() (which takes none of
 *          ours). The calls hold store->api, so no write runs while a commit does.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "internal.h"

static uint64_t min_u64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static uint64_t blocks_of(uint64_t bytes)
{
	return (bytes + COW_BLOCK - 1) >> COW_SHIFT;
}

/* Promises @blocks and what must be written above them, and makes the leaf of block @idx dirty. Under store->lock. */
static int make_dirty(struct cow_object *o, uint64_t idx, uint64_t blocks, uint64_t slack, struct node **leaf)
{
	struct cow_store *s = o->store;
	uint64_t need = blocks + cow_tree_cost(&o->tree, idx) + (o->dirty ? 0 : cow_catalog_cost(&s->objects, o->record));

	if (!cow_space_reserve(&s->space, need, slack))
		return -ENOSPC;
	*leaf = cow_tree_make(&o->tree, idx);
	if (!*leaf) {
		cow_space_unreserve(&s->space, blocks);     /* what is promised above them lasts until the commit */
		return -ENOMEM;
	}
	cow_tree_dirty(&o->tree, idx);
	if (!o->dirty)
		cow_catalog_touch(&s->objects, o->record);
	o->dirty = true;
	return 0;
}

/* --- what libiomap asks ----------------------------------------------------------------------------------- */

static void fill(struct iomap *map, uint64_t idx, uint64_t n, uint16_t type, uint64_t blk)
{
	map->offset = idx << COW_SHIFT;
	map->length = n << COW_SHIFT;
	map->type = type;
	map->addr = type == IOMAP_MAPPED ? blk << COW_SHIFT : IOMAP_NULL_ADDR;
}

/* How many blocks from block @i on, at most @n, lie side by side (or are holes) and agree in the states of @mask. */
static uint64_t run_of(const struct node *leaf, unsigned i, uint64_t n, uint8_t mask)
{
	uint64_t k = 1, blk = leaf->e[i].blk;

	while (k < n && (leaf->state[i + k] & mask) == (leaf->state[i] & mask) && leaf->e[i + k].blk == (blk ? blk + k : 0))
		k++;
	return k;
}

static void map_read(struct cow_object *o, uint64_t idx, uint64_t n, struct iomap *map)
{
	const struct node *leaf = cow_tree_find(&o->tree, idx);
	unsigned i = idx % COW_FANOUT;

	if (!leaf) {
		fill(map, idx, n, IOMAP_HOLE, 0);
		return;
	}
	/* a block that has a promise or a place, but no bytes anywhere yet, reads as zeros where it is not cached */
	bool mapped = leaf->e[i].blk != 0, waiting = leaf->state[i] & (BLOCK_RESERVED | BLOCK_PLACED);

	n = run_of(leaf, i, n, mapped ? 0 : BLOCK_RESERVED | BLOCK_PLACED);
	fill(map, idx, n, mapped ? IOMAP_MAPPED : waiting ? IOMAP_DELALLOC : IOMAP_HOLE, leaf->e[i].blk);
}

static char fresh_mark;         /* iomap.priv of a mapping whose blocks were RESERVED for it */

static int map_write(struct cow_object *o, uint64_t idx, uint64_t n, unsigned flags, struct iomap *map, struct iomap *src)
{
	struct node *leaf = cow_tree_find(&o->tree, idx);
	unsigned i = idx % COW_FANOUT;
	uint8_t state = leaf ? leaf->state[i] : 0;
	uint64_t old = leaf ? leaf->e[i].blk : 0;
	int ret;

	if (old && o->store->params.bug == COW_BUG_IN_PLACE)
		state = leaf->state[i] |= BLOCK_OWNED;
	if (leaf)
		n = run_of(leaf, i, n, BLOCK_RESERVED | BLOCK_PLACED | BLOCK_OWNED);
	if (!(state & (BLOCK_RESERVED | BLOCK_PLACED | BLOCK_OWNED))) {
		if (!old && (flags & IOMAP_ZERO)) {
			fill(map, idx, n, IOMAP_HOLE, 0);
			return 0;
		}
		ret = make_dirty(o, idx, n, COW_SLACK, &leaf);
		if (ret == -ENOSPC && n > 1) {
			n = 1;
			ret = make_dirty(o, idx, n, COW_SLACK, &leaf);
		}
		if (ret)
			return ret;
		for (uint64_t k = 0; k < n; k++)
			leaf->state[i + k] |= BLOCK_RESERVED;
		state = leaf->state[i];
		map->priv = &fresh_mark;
	} else {
		ret = make_dirty(o, idx, 0, 0, &leaf);
		if (ret)
			return ret;
	}
	for (uint64_t k = 0; k < n; k++)
		leaf->state[i + k] |= BLOCK_STALE;
	if (state & BLOCK_OWNED) {
		fill(map, idx, n, IOMAP_MAPPED, old);
		return 0;
	}
	if (state & BLOCK_PLACED) {
		uint64_t k = 1;

		while (k < n && leaf->place[i + k] == leaf->place[i] + k)
			k++;
		n = k;
		fill(map, idx, n, IOMAP_MAPPED, leaf->place[i]);
		map->flags = old ? 0 : IOMAP_F_NEW;     /* what is at the place does not count */
	} else {
		fill(map, idx, n, IOMAP_DELALLOC, 0);
	}
	if (old) {
		map->flags |= IOMAP_F_SHARED;
		fill(src, idx, n, IOMAP_MAPPED, old);
		src->flags = 0;
		src->device = NULL;
	}
	return 0;
}

static int object_begin(void *ops_priv, uint64_t pos, uint64_t length, unsigned flags, struct iomap *map, struct iomap *src)
{
	struct cow_object *o = ops_priv;
	uint64_t idx = pos >> COW_SHIFT, n = COW_FANOUT - idx % COW_FANOUT;     /* no further than a leaf */
	int ret = 0;

	n = min_u64(n, blocks_of(pos % COW_BLOCK + (length ? length : 1)));
	map->flags = 0;
	map->device = NULL;
	map->priv = NULL;
	pthread_mutex_lock(&o->store->lock);
	map->validity_cookie = o->seq;
	if (flags & (IOMAP_WRITE | IOMAP_ZERO | IOMAP_UNSHARE))
		ret = map_write(o, idx, n, flags, map, src);
	else
		map_read(o, idx, n, map);
	pthread_mutex_unlock(&o->store->lock);
	return ret;
}

/* A promise for what was not written after all is taken back. */
static int object_end(void *ops_priv, uint64_t pos, uint64_t length, int64_t written, unsigned flags, struct iomap *map)
{
	struct cow_object *o = ops_priv;
	uint64_t idx = written > 0 ? blocks_of(pos + (uint64_t)written) : pos >> COW_SHIFT;
	uint64_t end = (map->offset + map->length) >> COW_SHIFT;

	(void)length;
	(void)flags;
	if (map->priv != &fresh_mark)
		return 0;
	pthread_mutex_lock(&o->store->lock);
	for (; idx < end; idx++) {
		struct node *leaf = cow_tree_find(&o->tree, idx);
		unsigned i = idx % COW_FANOUT;

		if (!leaf || !(leaf->state[i] & BLOCK_RESERVED))
			continue;
		leaf->state[i] &= (uint8_t)~BLOCK_RESERVED;
		cow_space_unreserve(&o->store->space, 1);
	}
	pthread_mutex_unlock(&o->store->lock);
	return 0;
}

static bool object_valid(void *ops_priv, const struct iomap *map)
{
	struct cow_object *o = ops_priv;

	pthread_mutex_lock(&o->store->lock);
	bool valid = map->validity_cookie == o->seq;

	pthread_mutex_unlock(&o->store->lock);
	return valid;
}

static void drop_block(void *priv, struct node *leaf, unsigned i)
{
	struct space *space = priv;

	if (leaf->state[i] & BLOCK_RESERVED)
		cow_space_unreserve(space, 1);
	if (leaf->state[i] & BLOCK_PLACED)
		cow_space_give(space, leaf->place[i]);
	if (leaf->state[i] & BLOCK_OWNED)
		cow_space_give(space, leaf->e[i].blk);
	/* else a root leads there: the block is free when that root is let go */
}

/* Blocks to write because the tree is cut there; under store->lock. */
static uint64_t cut_cost(const struct cow_object *o, uint64_t size)
{
	return cow_tree_cut_cost(&o->tree, blocks_of(size)) + (o->dirty ? 0 : cow_catalog_cost(&o->store->objects, o->record));
}

static int object_set_size(void *ops_priv, uint64_t size)
{
	struct cow_object *o = ops_priv;
	struct cow_store *s = o->store;
	int ret = -ENOSPC;

	pthread_mutex_lock(&s->lock);
	if (cow_space_reserve(&s->space, cut_cost(o, size), 0)) {
		cow_tree_cut(&o->tree, blocks_of(size), drop_block, &s->space);
		if (!o->dirty)
			cow_catalog_touch(&s->objects, o->record);
		o->dirty = true;
		o->seq++;
		ret = 0;
	}
	pthread_mutex_unlock(&s->lock);
	return ret;
}

static const struct iomap_ops object_ops = {
	.iomap_begin = object_begin,
	.iomap_end = object_end,
	.iomap_valid = object_valid,
	.set_size = object_set_size,
};

/* Where block @i is written to; 0: nobody has decided. */
static uint64_t target(const struct node *leaf, unsigned i)
{
	return leaf->state[i] & BLOCK_OWNED ? leaf->e[i].blk : leaf->state[i] & BLOCK_PLACED ? leaf->place[i] : 0;
}

/* Delayed allocation ends here: @n blocks from block @i on, as many as are only promised a place, get one. */
static void place(struct space *space, struct node *leaf, unsigned i, uint64_t n)
{
	uint64_t run = 0, got, blk;

	while (run < n && !target(leaf, i + (unsigned)run) && (leaf->state[i + run] & BLOCK_RESERVED))
		run++;
	blk = cow_space_take(space, run, &got);
	cow_space_unreserve(space, got);
	for (uint64_t k = 0; k < got; k++) {
		leaf->place[i + k] = blk + k;
		leaf->state[i + k] = (uint8_t)((leaf->state[i + k] & ~BLOCK_RESERVED) | BLOCK_PLACED);
	}
}

static ssize_t object_writeback_range(struct iomap_writepage_ctx *wpc, struct iomap_folio *folio, uint64_t pos, uint64_t len,
				      uint64_t end_pos)
{
	struct cow_object *o = wpc->ops_priv;
	uint64_t idx = pos >> COW_SHIFT, first = 0;
	unsigned i = idx % COW_FANOUT, n = 0;
	bool shared = false;

	pthread_mutex_lock(&o->store->lock);
	struct node *leaf = cow_tree_find(&o->tree, idx);

	if (leaf) {
		if (!target(leaf, i))
			place(&o->store->space, leaf, i, min_u64(blocks_of(len), COW_FANOUT - i));
		first = target(leaf, i);
		shared = !(leaf->state[i] & BLOCK_OWNED) && leaf->e[i].blk;
		for (n = 1; i + n < COW_FANOUT && target(leaf, i + n) == first + n; n++)
			if (shared != (!(leaf->state[i + n] & BLOCK_OWNED) && leaf->e[i + n].blk))
				break;
	}
	pthread_mutex_unlock(&o->store->lock);
	if (!first)
		return -EIO;            /* dirty, and nothing promised: iomap_begin() was not asked */
	fill(&wpc->iomap, idx, n, IOMAP_MAPPED, first);
	wpc->iomap.flags = shared ? IOMAP_F_SHARED : 0;
	wpc->iomap.device = NULL;
	return iomap_add_to_ioend(wpc, folio, pos, end_pos, len);
}

/* The bytes are on the device: what reads from there from now on reads the new ones. */
static int object_end_io(struct iomap_ioend *ioend)
{
	struct cow_object *o = ioend->ops_priv;
	uint64_t idx = ioend->offset >> COW_SHIFT, end = blocks_of(ioend->offset + ioend->size);

	if (ioend->error)
		return 0;               /* they stay dirty, and are sent to the same place again */
	pthread_mutex_lock(&o->store->lock);
	for (; idx < end; idx++) {
		struct node *leaf = cow_tree_find(&o->tree, idx);
		unsigned i = idx % COW_FANOUT;

		if (!leaf || !(leaf->state[i] & BLOCK_PLACED))
			continue;
		leaf->e[i].blk = leaf->place[i];
		leaf->state[i] = (uint8_t)((leaf->state[i] & ~BLOCK_PLACED) | BLOCK_OWNED);
	}
	o->seq++;
	pthread_mutex_unlock(&o->store->lock);
	return 0;
}

static const struct iomap_writeback_ops object_writeback_ops = {
	.writeback_range = object_writeback_range,
	.end_io = object_end_io,
};

/* --- from first open to last ------------------------------------------------------------------------------ */

int cow_object_create(struct cow_store *store, const struct cow_ref *ref, uint32_t record, struct cow_object **out)
{
	struct iomap_file_params params = IOMAP_FILE_PARAMS_INIT;
	struct cow_object *o = calloc(1, sizeof(*o));
	char name[32];
	int ret;

	if (!o)
		return -ENOMEM;
	o->store = store;
	o->record = record;
	o->snapshot = COW_NONE;
	ret = cow_tree_load(&o->tree, &store->io, ref);
	if (ret) {
		free(o);
		return ret;
	}
	params.block_size = COW_BLOCK;
	params.device = store->device;
	params.ops = &object_ops;
	params.writeback_ops = &object_writeback_ops;
	params.ops_priv = o;
	params.size = ref->size;
	snprintf(name, sizeof(name), "object-%llu", (unsigned long long)store->files++);
	ret = iomap_open_with(store->cache, name, record == COW_NONE || store->params.readonly ? O_RDONLY : O_RDWR, 0, &params,
			      &o->file);
	if (ret) {
		cow_object_free(o);
		return ret;
	}
	*out = o;
	return 0;
}

void cow_object_close_file(struct cow_object *o)
{
	iomap_close(o->file);
	o->file = NULL;
}

void cow_object_free(struct cow_object *o)
{
	cow_tree_fini(&o->tree);
	free(o);
}

/* --- sums ------------------------------------------------------------------------------------------------- */

/* All of [buf, buf + len) from @pos on; fewer only at an error, which is returned then. */
static int read_all(struct cow_object *o, void *buf, size_t len, uint64_t pos)
{
	for (size_t done = 0; done < len;) {
		ssize_t n = iomap_pread(o->file, (char *)buf + done, len - done, (off_t)(pos + done));

		if (n <= 0)
			return n ? (int)n : -EIO;
		done += (size_t)n;
	}
	return 0;
}

struct summing {
	struct cow_object *object;
	uint64_t size;
};

/* After fsync nothing is promised or on its way; sums that are not known yet are made from the cache. */
static int sum_leaf(void *priv, struct node *leaf, uint64_t first)
{
	struct summing *s = priv;
	unsigned char block[COW_BLOCK];

	for (unsigned i = 0; i < COW_FANOUT; i++) {
		uint64_t pos = (first + i) << COW_SHIFT;
		int ret;

		if (leaf->state[i] & (BLOCK_RESERVED | BLOCK_PLACED))
			return -EUCLEAN;
		if (!(leaf->state[i] & BLOCK_STALE) || !leaf->e[i].blk || pos >= s->size)
			continue;
		size_t len = (size_t)min_u64(COW_BLOCK, s->size - pos);

		ret = read_all(s->object, block, len, pos);
		if (ret)
			return ret;
		leaf->e[i].sum = cow_sum(block, len);
		leaf->state[i] &= (uint8_t)~BLOCK_STALE;
	}
	return 0;
}

int cow_object_sync(struct cow_object *o)
{
	struct summing s = { .object = o };
	int ret = iomap_fsync(o->file);

	/* The error of a flush stays until somebody decides. What is cached is right, so it is written again. */
	if (ret)
		ret = iomap_resolve(o->file, 0, 0, IOMAP_RESOLVE_RETRY);
	if (ret)
		return ret;
	s.size = cow_size(o);
	return cow_tree_each_dirty(&o->tree, sum_leaf, &s);
}

/* The sum of the block at @idx does not hold any more, because the object's end moves: make it anew at the commit. */
static int mark_stale(struct cow_object *o, uint64_t idx)
{
	struct node *leaf;
	int ret = 0;

	pthread_mutex_lock(&o->store->lock);
	leaf = cow_tree_find(&o->tree, idx);
	if (leaf && (leaf->e[idx % COW_FANOUT].blk || leaf->state[idx % COW_FANOUT])) {
		ret = make_dirty(o, idx, 0, 0, &leaf);
		if (!ret)
			leaf->state[idx % COW_FANOUT] |= BLOCK_STALE;
	}
	pthread_mutex_unlock(&o->store->lock);
	return ret;
}

/* What was just written: @len bytes at @pos, of an object of @size. Blocks of which all is in @buf get their sum. */
static void sum_written(struct cow_object *o, const unsigned char *buf, uint64_t len, uint64_t pos, uint64_t size)
{
	for (uint64_t idx = blocks_of(pos); idx << COW_SHIFT < pos + len; idx++) {
		uint64_t from = idx << COW_SHIFT, n = min_u64(COW_BLOCK, size - from);

		if (from + n > pos + len)
			break;
		uint64_t sum = cow_sum(buf + (from - pos), n);

		pthread_mutex_lock(&o->store->lock);
		struct node *leaf = cow_tree_find(&o->tree, idx);

		if (leaf) {
			leaf->e[idx % COW_FANOUT].sum = sum;
			leaf->state[idx % COW_FANOUT] &= (uint8_t)~BLOCK_STALE;
		}
		pthread_mutex_unlock(&o->store->lock);
	}
}

/* Compares blocks that lie one behind the other in @buf, from @pos (a multiple of a block) on, all of one leaf. */
static int check_sums(struct cow_object *o, const unsigned char *buf, size_t len, uint64_t pos)
{
	struct cow_ptr want[COW_FANOUT];
	uint64_t idx = pos >> COW_SHIFT, n = blocks_of(len);
	bool known[COW_FANOUT];

	pthread_mutex_lock(&o->store->lock);
	const struct node *leaf = cow_tree_find(&o->tree, idx);

	for (uint64_t k = 0; k < n && leaf; k++) {
		uint64_t i = idx % COW_FANOUT + k;

		want[k] = leaf->e[i];
		known[k] = (want[k].blk || leaf->state[i] & (BLOCK_RESERVED | BLOCK_PLACED)) && !(leaf->state[i] & BLOCK_STALE);
	}
	pthread_mutex_unlock(&o->store->lock);
	for (uint64_t k = 0; k < n && leaf; k++) {
		size_t off = (size_t)k << COW_SHIFT;

		if (known[k] && cow_sum(buf + off, min_u64(COW_BLOCK, len - off)) != want[k].sum) {
			cow_tell(o->store, "contents at byte %llu (block %llu of the store) do not match their checksum",
				 (unsigned long long)(pos + off), (unsigned long long)want[k].blk);
			return -EBADMSG;
		}
	}
	return 0;
}

/* --- reading and writing ---------------------------------------------------------------------------------- */

uint64_t cow_size(struct cow_object *o)
{
	off_t size = iomap_size(o->file);

	return size > 0 ? (uint64_t)size : 0;
}

/* A piece of [pos, pos + len) that begins at @pos and needs one read: whole blocks, or part of one by way of @bounce. */
static ssize_t read_piece(struct cow_object *o, unsigned char *buf, size_t len, uint64_t pos, uint64_t size)
{
	unsigned char bounce[COW_BLOCK];
	uint64_t start = pos & ~(uint64_t)(COW_BLOCK - 1), leaf_end = (start | (((uint64_t)COW_FANOUT << COW_SHIFT) - 1)) + 1;
	size_t whole = (size_t)(min_u64(size, leaf_end) - pos), n;
	int ret;

	if (pos == start && len < whole)
		whole = len & ~(size_t)(COW_BLOCK - 1);
	if (pos == start && whole) {
		ret = read_all(o, buf, whole, pos);
		if (!ret)
			ret = check_sums(o, buf, whole, pos);
		return ret ? ret : (ssize_t)whole;
	}
	n = (size_t)min_u64(COW_BLOCK, size - start);
	ret = read_all(o, bounce, n, start);
	if (!ret)
		ret = check_sums(o, bounce, n, start);
	if (ret)
		return ret;
	n = (size_t)min_u64(len, n - (pos - start));
	memcpy(buf, bounce + (pos - start), n);
	return (ssize_t)n;
}

ssize_t cow_read(struct cow_object *o, void *buf, size_t len, uint64_t pos)
{
	size_t done = 0;
	ssize_t n = 0;

	pthread_rwlock_rdlock(&o->store->api);
	uint64_t size = cow_size(o);

	len = pos < size ? (size_t)min_u64(len, size - pos) : 0;
	while (done < len) {
		n = read_piece(o, (unsigned char *)buf + done, len - done, pos + done, size);
		if (n < 0)
			break;
		done += (size_t)n;
	}
	pthread_rwlock_unlock(&o->store->api);
	return done ? (ssize_t)done : n;
}

static int may_change(const struct cow_object *o)
{
	return o->record == COW_NONE || o->store->params.readonly || o->store->broken ? -EROFS : 0;
}

ssize_t cow_write(struct cow_object *o, const void *buf, size_t len, uint64_t pos)
{
	ssize_t ret;

	if (pos > COW_SIZE_MAX || len > COW_SIZE_MAX - pos)
		return -EFBIG;
	pthread_rwlock_wrlock(&o->store->api);
	uint64_t size = cow_size(o);

	ret = may_change(o);
	if (!ret && len && size % COW_BLOCK && pos + len > size)
		ret = mark_stale(o, size >> COW_SHIFT);
	if (!ret) {
		o->store->changed = true;
		ret = iomap_pwrite(o->file, buf, len, (off_t)pos);
	}
	if (ret > 0)
		sum_written(o, buf, (uint64_t)ret, pos, cow_size(o));
	pthread_rwlock_unlock(&o->store->api);
	return ret;
}

/* Is there room for what set_size() will need? Asked first, since the cache has let go of what is cut when it is called. */
static int may_cut(struct cow_object *o, uint64_t size)
{
	struct space *space = &o->store->space;
	int ret = -ENOSPC;

	pthread_mutex_lock(&o->store->lock);
	/* and, where it cuts inside a block, for that block and its leaf */
	if (space->nr_free >= space->reserved + cut_cost(o, size) + 1 + (size % COW_BLOCK ? COW_LEVELS : 0))
		ret = 0;
	pthread_mutex_unlock(&o->store->lock);
	return ret;
}

int cow_truncate(struct cow_object *o, uint64_t size)
{
	int ret;

	if (size > COW_SIZE_MAX)
		return -EFBIG;
	pthread_rwlock_wrlock(&o->store->api);
	uint64_t edge = min_u64(size, cow_size(o));

	ret = may_change(o);
	if (!ret)
		ret = may_cut(o, size);
	if (!ret && edge % COW_BLOCK)
		ret = mark_stale(o, edge >> COW_SHIFT);
	if (!ret) {
		o->store->changed = true;
		ret = iomap_ftruncate(o->file, (off_t)size);
	}
	pthread_rwlock_unlock(&o->store->api);
	return ret;
}
