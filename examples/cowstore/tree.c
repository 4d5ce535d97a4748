/*
 * tree.c - pointers to the blocks of one object, or of a list of records
 *
 * In memory a tree has at least one level, so that each block of contents has a state beside its pointer. On the device the
 * node is left out where it would hold one pointer only, so a small object costs one block.
 *
 * A dirty node's parents are dirty. cow_tree_write() gives each a new block, children first, because a parent holds the
 * checksums of its children.
 *
 * Locking: store->lock, but for cow_tree_load() and for cow_tree_write(), during which nobody changes the tree.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "internal.h"

static uint64_t capacity(unsigned level)
{
	return 1ULL << (8 * level);
}

static unsigned slot(uint64_t idx, unsigned level)
{
	return idx >> (8 * (level - 1)) & (COW_FANOUT - 1);
}

static struct node *new_node(unsigned level)
{
	struct node *n = calloc(1, sizeof(*n));

	if (n)
		n->level = (uint8_t)level;
	return n;
}

static void free_node(struct node *n)
{
	if (!n)
		return;
	if (n->level > 1)
		for (unsigned i = 0; i < COW_FANOUT; i++)
			free_node(n->child[i]);         /* at most COW_LEVELS deep, as all recursion here */
	free(n);
}

int cow_tree_init(struct tree *t)
{
	t->ptr = (struct cow_ptr) { 0, 0 };
	t->top = new_node(1);
	return t->top ? 0 : -ENOMEM;
}

void cow_tree_fini(struct tree *t)
{
	free_node(t->top);
	t->top = NULL;
}

static int load_node(const struct tree_io *io, const struct cow_ptr *ptr, unsigned level, struct node **out)
{
	struct node *n = new_node(level);
	int ret;

	if (!n)
		return -ENOMEM;
	ret = io->read(io->priv, ptr, n->e);
	for (unsigned i = 0; level > 1 && i < COW_FANOUT && !ret; i++)
		if (n->e[i].blk)
			ret = load_node(io, &n->e[i], level - 1, &n->child[i]);
	if (ret)
		free_node(n);
	else
		*out = n;
	return ret;
}

int cow_tree_load(struct tree *t, const struct tree_io *io, const struct cow_ref *ref)
{
	if (ref->levels > COW_LEVELS)
		return -EUCLEAN;
	t->ptr = ref->top;
	if (ref->levels && ref->top.blk)
		return load_node(io, &ref->top, ref->levels, &t->top);
	t->top = new_node(1);
	if (!t->top)
		return -ENOMEM;
	t->top->e[0] = ref->top;
	return 0;
}

struct node *cow_tree_find(const struct tree *t, uint64_t idx)
{
	struct node *n = t->top;

	if (idx >= capacity(n->level))
		return NULL;
	while (n && n->level > 1)
		n = n->child[slot(idx, n->level)];
	return n;
}

struct node *cow_tree_make(struct tree *t, uint64_t idx)
{
	struct node *n;

	while (idx >= capacity(t->top->level)) {
		n = new_node(t->top->level + 1u);
		if (!n)
			return NULL;
		/* The tree gets higher. A single leaf may not be on the device as a node; now it must be. */
		if (t->top->level == 1)
			t->top->dirty = true;
		n->child[0] = t->top;
		n->e[0] = t->ptr;
		n->dirty = true;
		t->top = n;
	}
	for (n = t->top; n->level > 1; n = n->child[slot(idx, n->level)]) {
		struct node **child = &n->child[slot(idx, n->level)];

		if (!*child)
			*child = new_node(n->level - 1u);
		if (!*child)
			return NULL;
	}
	return n;
}

unsigned cow_tree_cost(const struct tree *t, uint64_t idx)
{
	unsigned cost = 0, level = t->top->level;
	struct node *n = t->top;

	if (idx >= capacity(level)) {           /* as cow_tree_make(): new tops, and from the last of them a path of its own */
		cost = level == 1 && !n->dirty;
		for (; idx >= capacity(level); level++)
			cost++;
		return cost + level - 1;
	}
	for (; n && level; n = level > 1 ? n->child[slot(idx, level)] : NULL, level--)
		cost += !n->dirty;
	return cost + level;
}

void cow_tree_dirty(struct tree *t, uint64_t idx)
{
	for (struct node *n = t->top; n; n = n->level > 1 ? n->child[slot(idx, n->level)] : NULL)
		n->dirty = true;
}

static uint64_t count_dirty(const struct node *n)
{
	uint64_t count = n->dirty;

	if (n->dirty && n->level > 1)
		for (unsigned i = 0; i < COW_FANOUT; i++)
			if (n->child[i])
				count += count_dirty(n->child[i]);
	return count;
}

uint64_t cow_tree_count_dirty(const struct tree *t)
{
	return count_dirty(t->top);
}

/* What @n covers begins at block @start. */
static void cut_node(struct node *n, uint64_t start, uint64_t first, void (*drop)(void *, struct node *, unsigned), void *priv)
{
	uint64_t step = capacity(n->level - 1u);

	for (unsigned i = 0; i < COW_FANOUT; i++) {
		uint64_t from = start + i * step;

		if (from + step <= first)
			continue;
		if (n->level == 1) {
			drop(priv, n, i);
			n->e[i] = (struct cow_ptr) { 0, 0 };
			n->state[i] = 0;
		} else if (n->child[i]) {
			cut_node(n->child[i], from, first, drop, priv);
			if (from >= first) {
				free_node(n->child[i]);
				n->child[i] = NULL;
				n->e[i] = (struct cow_ptr) { 0, 0 };
			}
		}
		n->dirty = true;
	}
}

unsigned cow_tree_cut_cost(const struct tree *t, uint64_t first)
{
	return first < capacity(t->top->level) ? cow_tree_cost(t, first) + 1 : 0;
}

void cow_tree_cut(struct tree *t, uint64_t first, void (*drop)(void *, struct node *, unsigned), void *priv)
{
	if (first >= capacity(t->top->level))
		return;
	cut_node(t->top, 0, first, drop, priv);
	/* no higher than it must be; the empty tree keeps its one leaf */
	while (t->top->level > 1 && t->top->child[0]) {
		struct node *top = t->top;

		for (unsigned i = 1; i < COW_FANOUT; i++)
			if (top->child[i])
				return;
		t->top = top->child[0];
		t->ptr = top->e[0];
		top->child[0] = NULL;
		free_node(top);
		/* what leads here changes, so somebody must write it, if only for the level */
		t->top->dirty = true;
	}
	if (t->top->level > 1) {
		for (unsigned i = 1; i < COW_FANOUT; i++)
			if (t->top->child[i])
				return;
		/* nothing is left: relabel the top as a leaf */
		memset(t->top->e, 0, sizeof(t->top->e));
		memset(t->top->place, 0, sizeof(t->top->place));
		t->top->level = 1;
	}
}

static int each_dirty(struct node *n, uint64_t start, int (*visit)(void *, struct node *, uint64_t), void *priv)
{
	int ret = 0;

	if (!n->dirty)
		return 0;
	if (n->level == 1)
		return visit(priv, n, start);
	for (unsigned i = 0; i < COW_FANOUT && !ret; i++)
		if (n->child[i])
			ret = each_dirty(n->child[i], start + i * capacity(n->level - 1u), visit, priv);
	return ret;
}

int cow_tree_each_dirty(struct tree *t, int (*visit)(void *, struct node *, uint64_t), void *priv)
{
	return each_dirty(t->top, 0, visit, priv);
}

static bool is_empty(const struct node *n)
{
	for (unsigned i = 0; i < COW_FANOUT; i++)
		if (n->e[i].blk)
			return false;
	return true;
}

static int write_node(struct node *n, const struct tree_io *io, struct space *s, pthread_mutex_t *lock, struct cow_ptr *out)
{
	uint64_t blk, got;
	int ret;

	for (unsigned i = 0; n->level > 1 && i < COW_FANOUT; i++) {
		if (!n->child[i] || !n->child[i]->dirty)
			continue;
		ret = write_node(n->child[i], io, s, lock, &n->e[i]);
		if (ret)
			return ret;
	}
	*out = (struct cow_ptr) { 0, 0 };
	if (is_empty(n))
		return 0;
	pthread_mutex_lock(lock);
	blk = cow_space_take(s, 1, &got);
	for (unsigned i = 0; i < COW_FANOUT && got; i++)
		if (n->e[i].blk)
			cow_space_ref(s, n->e[i].blk);
	pthread_mutex_unlock(lock);
	if (!got)
		return -ENOSPC;
	*out = (struct cow_ptr) { blk, cow_sum(n->e, COW_BLOCK) };
	return io->write(io->priv, blk, n->e);
}

int cow_tree_write(struct tree *t, const struct tree_io *io, struct space *s, pthread_mutex_t *lock, struct cow_ref *ref)
{
	const struct node *top = t->top;
	bool single = top->level == 1;

	for (unsigned i = 1; i < COW_FANOUT && single; i++)
		single = !top->e[i].blk;
	if (single) {
		/* a clean leaf says the same as ptr */
		ref->top = top->e[0];
		ref->levels = 0;
		return 0;
	}
	ref->levels = top->level;
	ref->top = t->ptr;
	return top->dirty ? write_node(t->top, io, s, lock, &ref->top) : 0;
}

static void settle_node(struct node *n)
{
	if (!n->dirty)
		return;
	n->dirty = false;
	for (unsigned i = 0; i < COW_FANOUT; i++) {
		if (n->level == 1)
			n->state[i] = 0;
		else if (n->child[i])
			settle_node(n->child[i]);
	}
}

void cow_tree_settle(struct tree *t, const struct cow_ref *ref)
{
	settle_node(t->top);
	t->ptr = ref->top;
}
