/*
 * xarray.c - a 64-way radix tree from page index to pointer, with three marks
 *
 * A node at @shift looks at bits [shift, shift + XA_SHIFT) of the index; leaves have shift 0 and hold entries, all
 * others hold nodes. What a slot points at follows from its level alone, so entries may be any pointer but NULL.
 *
 *     root, shift 6      slots[0]   slots[1]   slots[2] ...
 *                          |          |
 *     leaf, shift 0     0 .. 63    64 .. 127
 *
 * Beside its slots a node keeps four words of bits: which slots are taken (PRESENT), and the three marks. In a leaf a
 * bit speaks of the slot's entry, above it says "some bit is set in the word of the same kind of that child". So every
 * search, with a mark or without, is the same descent along set bits and never visits a subtree that has nothing for it.
 *
 * The tree is as high as its largest index needs: a larger one puts a new root on top (slots[0] is the old root), and
 * a root that is left with slots[0] alone gives way to that child. A reader that still holds the root of before is right:
 *  - the old root of a grown tree is still part of the tree, and what it does not cover was empty when it was loaded;
 *  - the old root of a shrunk tree still leads to its only child, and its other slots were empty when it was replaced.
 * A node is unlinked only when it is empty (or is such a root), so nobody can find in it what is not there any more.
 *
 * Invariants: no node is empty; a root above the leaves has more than slots[0]; see xa_check().
 * Locking:    the owner's lock for every change; readers under RCU load slots with acquire, which pairs with the release
 *             that published the node or entry.
 * Kernel:     lib/xarray.c, v6.17. Differs: no value entries, no multi-index entries (a large object fills its slots), no
 *             tag bits in pointers, nodes come from the caller's pool, a bitmap of taken slots instead of a count.
 */
#include "xarray.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include "bug.h"
#include "mutant.h"
#include "rcu.h"

#define XA_SLOTS        (1U << XA_SHIFT)
#define XA_LEVELS       ((64 + XA_SHIFT - 1) / XA_SHIFT)
#define PRESENT         XA_MARKS        /* the word after the marks: slots that are taken */
#define XA_KINDS        (XA_MARKS + 1)

static_assert(XA_SHIFT >= 1 && XA_SHIFT <= 6, "the bits of one kind are one word");

/* From xa_store() until a grace period after the slots became empty. */
struct xa_node {
	/* fixed once it is in the tree */
	struct mem *mem;
	unsigned shift;
	/* written under the owner's lock, read under RCU */
	_Atomic uint64_t bits[XA_KINDS];
	union {
		struct xa_node *next;   /* in a pool */
		struct rcu_head rcu;    /* unlinked */
	};
	_Atomic(void *) slots[XA_SLOTS];
};

/* The nodes from a leaf, node[0], up to the root, node[top]. */
struct path { struct xa_node *node[XA_LEVELS]; unsigned top; };

static inline unsigned slot_of(uint64_t index, unsigned shift) { return (index >> shift) & (XA_SLOTS - 1); }

/* What varies in the indices below one slot, and below a whole node, at @shift. */
static inline uint64_t slot_mask(unsigned shift) { return (UINT64_C(1) << shift) - 1; }
static inline uint64_t node_mask(unsigned shift) { return shift + XA_SHIFT < 64 ? slot_mask(shift + XA_SHIFT) : UINT64_MAX; }

static inline bool covers(const struct xa_node *root, uint64_t index) { return index >> root->shift < XA_SLOTS; }

/* The shift of the lowest root that covers @index. */
static unsigned root_shift(uint64_t index)
{
	unsigned shift = 0;

	while (index > node_mask(shift))
		shift += XA_SHIFT;
	return shift;
}

static inline uint64_t last_of(uint64_t index, uint64_t nr)
{
	IOMAP_BUG_ON(!nr || index + (nr - 1) < index);
	return index + (nr - 1);
}

/* The bits of [index, last] in the leaf of @index. */
static inline uint64_t leaf_bits(uint64_t index, uint64_t last)
{
	unsigned lo = slot_of(index, 0), hi = slot_of(min_u64(last, index | node_mask(0)), 0);

	return ((UINT64_C(2) << hi) - 1) & ~((UINT64_C(1) << lo) - 1);
}

/* --- reading ---------------------------------------------------------------------------------------------- */

static inline struct xa_node *leaf_of(const struct xarray *xa, uint64_t index)
{
	struct xa_node *node = load_acquire(&xa->root);

	if (!node || !covers(node, index))
		return NULL;
	for (unsigned shift = node->shift; shift && node; shift -= XA_SHIFT)
		node = load_acquire(&node->slots[slot_of(index, shift)]);
	return node;
}

/*
 * First entry in [*index, last] whose bit of @kind is set; *index becomes its slot and @path leads there. A bit may be
 * older or newer than its slot while somebody writes: a slot found empty is passed over. @at only grows, so it ends.
 */
static void *find(const struct xarray *xa, uint64_t *index, uint64_t last, unsigned kind, struct path *path)
{
	uint64_t at = *index;
	struct xa_node *node = load_acquire(&xa->root);

	if (!node || at > last || !covers(node, at))
		return NULL;
	unsigned shift = node->shift, level = shift / XA_SHIFT;
	path->top = level;
	path->node[level] = node;
	for (;;) {
		unsigned slot = slot_of(at, shift);
		uint64_t set = load_acquire(&node->bits[kind]) >> slot << slot;

		if (set) {
			unsigned next = (unsigned)__builtin_ctzll(set);

			if (next != slot)
				at = (at & ~node_mask(shift)) | (uint64_t)next << shift;
			if (at > last)
				return NULL;
			void *p = load_acquire(&node->slots[next]);
			if (p && !shift) {
				*index = at;
				return p;
			}
			if (p) {
				node = p;
				shift -= XA_SHIFT;
				path->node[--level] = node;
				continue;
			}
			at |= slot_mask(shift);
		} else {
			at |= node_mask(shift);
		}
		if (at >= last)
			return NULL;
		/* Past the end of a node @at continues in its parent. */
		for (at++; !slot_of(at, shift); shift += XA_SHIFT)
			if (level++ == path->top)
				return NULL;
		node = path->node[level];
	}
}

void xa_init(struct xarray *xa, struct mem *mem)
{
	xa->mem = mem;
	store_release(&xa->root, NULL);
}

bool xa_empty(const struct xarray *xa)
{
	return !load_acquire(&xa->root);
}

void *xa_load(const struct xarray *xa, uint64_t index)
{
	struct xa_node *leaf = leaf_of(xa, index);

	return leaf ? load_acquire(&leaf->slots[slot_of(index, 0)]) : NULL;
}

void *xa_find(const struct xarray *xa, uint64_t *index, uint64_t last)
{
	struct path path;

	return find(xa, index, last, PRESENT, &path);
}

void *xa_find_marked(const struct xarray *xa, uint64_t *index, uint64_t last, enum xa_mark mark)
{
	struct path path;

	return find(xa, index, last, mark, &path);
}

bool xa_marked(const struct xarray *xa, enum xa_mark mark)
{
	struct xa_node *root = load_acquire(&xa->root);

	return root && load_acquire(&root->bits[mark]);
}

bool xa_get_mark(const struct xarray *xa, uint64_t index, enum xa_mark mark)
{
	struct xa_node *leaf = leaf_of(xa, index);

	return leaf && (load_acquire(&leaf->bits[mark]) >> slot_of(index, 0) & 1);
}

/* --- bits, from the leaf up ------------------------------------------------------------------------------- */

/* The path to the leaf of @index, which exists. */
static void walk(const struct xarray *xa, uint64_t index, struct path *path)
{
	struct xa_node *node = load_acquire(&xa->root);

	IOMAP_BUG_ON(!node || !covers(node, index));
	unsigned level = path->top = node->shift / XA_SHIFT;
	path->node[level] = node;
	while (level) {
		node = load_acquire(&node->slots[slot_of(index, level * XA_SHIFT)]);
		IOMAP_BUG_ON(!node);
		path->node[--level] = node;
	}
}

/* Sets @bits in the leaf of @index. Where a word was not zero, all above it is right already. */
static void set_bits(struct path *path, uint64_t index, uint64_t bits, unsigned kind)
{
	for (unsigned level = 0;; bits = UINT64_C(1) << slot_of(index, level * XA_SHIFT)) {
		_Atomic uint64_t *word = &path->node[level]->bits[kind];
		uint64_t old = load_relaxed(word);      /* only we write, under the owner's lock */

		if (bits & ~old)
			store_release(word, old | bits);        /* pairs with find(): who sees the bit sees the slot */
		if (old || level++ == path->top)
			return;
	}
}

/* Clears @bits in the leaf of @index, and above it where a word became zero. */
static void clear_bits(struct path *path, uint64_t index, uint64_t bits, unsigned kind)
{
	for (unsigned level = 0;; bits = UINT64_C(1) << slot_of(index, level * XA_SHIFT)) {
		_Atomic uint64_t *word = &path->node[level]->bits[kind];
		uint64_t old = load_relaxed(word);      /* only we write, under the owner's lock */

		if (!(old & bits))
			return;
		store_release(word, old & ~bits);
		if ((old & ~bits) || level++ == path->top)
			return;
	}
}

void xa_set_mark(struct xarray *xa, uint64_t index, enum xa_mark mark)
{
	struct path path;

	walk(xa, index, &path);
	IOMAP_BUG_ON(!load_relaxed(&path.node[0]->slots[slot_of(index, 0)]));    /* no entry is followed */
	set_bits(&path, index, UINT64_C(1) << slot_of(index, 0), mark);
}

void xa_clear_mark(struct xarray *xa, uint64_t index, enum xa_mark mark)
{
	uint64_t at = index;
	struct path path;

	if (find(xa, &at, index, mark, &path))
		clear_bits(&path, index, UINT64_C(1) << slot_of(index, 0), mark);
}

uint64_t xa_copy_mark(struct xarray *xa, uint64_t *first, uint64_t last, enum xa_mark from, enum xa_mark to, uint64_t max)
{
	uint64_t at = *first, nr = 0;
	struct path path;

	if (at > last)
		return 0;
	while (nr < max && find(xa, &at, last, from, &path)) {
		uint64_t bits = load_acquire(&path.node[0]->bits[from]) & leaf_bits(at, last);
		uint64_t end = at | node_mask(0);

		while ((uint64_t)__builtin_popcountll(bits) > max - nr) {
			bits &= ~(UINT64_C(1) << log2_floor(bits));
			end = (at & ~node_mask(0)) | log2_floor(bits);
		}
		set_bits(&path, at, bits, to);
		nr += (uint64_t)__builtin_popcountll(bits);
		if (end >= last) {
			*first = last + 1;
			return nr;
		}
		at = end + 1;
	}
	*first = nr < max ? last + 1 : at;
	return nr;
}

/* --- nodes ------------------------------------------------------------------------------------------------ */

static void free_node(struct rcu_head *head)
{
	rcu_callback_begin(head);
	struct xa_node *node = container_of(head, struct xa_node, rcu);
	mem_free(node->mem, node, sizeof(*node));
}

int xa_pool_fill(struct xarray *xa, struct xa_pool *pool)
{
	while (pool->nr < pool->need) {
		struct xa_node *node = mem_alloc(xa->mem, sizeof(*node));

		if (!node)
			return -ENOMEM;
		node->mem = xa->mem;
		node->next = pool->free;
		pool->free = node;
		pool->nr++;
	}
	return 0;
}

void xa_pool_fini(struct xarray *xa, struct xa_pool *pool)
{
	while (pool->free) {
		struct xa_node *node = pool->free;

		pool->free = node->next;
		mem_free(xa->mem, node, sizeof(*node));
	}
	pool->nr = pool->need = 0;
}

static struct xa_node *take(const struct xarray *xa, struct xa_pool *pool, unsigned shift)
{
	struct xa_node *node = pool->free;

	IOMAP_BUG_ON(!node || node->mem != xa->mem);
	pool->free = node->next;
	pool->nr--;
	node->next = NULL;
	node->shift = shift;
	return node;
}

/*
 * How many nodes are missing for [first, last] in a tree whose root is at least at @top, or -EEXIST. Each leaf is
 * looked for once; a node above the leaves is counted with the first leaf of the range that lies below it.
 */
static int plan(const struct xarray *xa, uint64_t first, uint64_t last, unsigned top)
{
	struct xa_node *root = load_acquire(&xa->root);
	unsigned need = root ? (top - root->shift) / XA_SHIFT : 0;

	for (uint64_t at = first;; at = (at | node_mask(0)) + 1) {
		unsigned missing;       /* levels, counted from the leaf, with no node for @at */

		if (!root) {
			missing = top / XA_SHIFT + 1;
		} else if (!covers(root, at)) {
			missing = root_shift(at) / XA_SHIFT;    /* what is higher leads to the old root, too */
		} else {
			struct xa_node *node = root;

			for (missing = root->shift / XA_SHIFT; missing; missing--) {
				node = load_acquire(&node->slots[slot_of(at, missing * XA_SHIFT)]);
				if (!node)
					break;
			}
			if (!missing && (load_acquire(&node->bits[PRESENT]) & leaf_bits(at, last)))
				return -EEXIST;
		}
		for (unsigned level = 0; level < missing; level++)
			if (at == first || !(at & node_mask(level * XA_SHIFT)))
				need++;
		if ((at | node_mask(0)) >= last)
			return (int)need;
	}
}

/* Brings the root to @top. */
static void grow(struct xarray *xa, unsigned top, struct xa_pool *pool)
{
	struct xa_node *root = load_acquire(&xa->root);

	if (!root) {
		store_release(&xa->root, take(xa, pool, top));
		return;
	}
	while (root->shift < top) {
		struct xa_node *node = take(xa, pool, root->shift + XA_SHIFT);

		/* relaxed: nobody sees the node before it is the root */
		store_relaxed(&node->slots[0], root);
		for (unsigned kind = 0; kind < XA_KINDS; kind++)
			store_relaxed(&node->bits[kind], load_relaxed(&root->bits[kind]) ? 1 : 0);
		store_release(&xa->root, node);         /* pairs with load_acquire() of the root by readers */
		root = node;
	}
}

/* The path to the leaf of @index; what is missing is added, empty. */
static void walk_create(struct xarray *xa, uint64_t index, struct xa_pool *pool, struct path *path)
{
	struct xa_node *node = load_acquire(&xa->root);
	unsigned level = path->top = node->shift / XA_SHIFT;

	path->node[level] = node;
	while (level) {
		_Atomic(void *) *slot = &node->slots[slot_of(index, level * XA_SHIFT)];

		node = load_acquire(slot);
		level--;
		if (!node) {
			node = take(xa, pool, level * XA_SHIFT);
			store_release(slot, node);      /* pairs with load_acquire() of slots by readers */
		}
		path->node[level] = node;
	}
}

int xa_store(struct xarray *xa, uint64_t index, uint64_t nr, void *entry, struct xa_pool *pool)
{
	IOMAP_BUG_ON(!entry);
	uint64_t last = last_of(index, nr);
	struct xa_node *root = load_acquire(&xa->root);
	unsigned top = root_shift(last);
	struct path path;

	if (root && root->shift > top)
		top = root->shift;
	int need = plan(xa, index, last, top);
	if (need < 0)
		return need;
	pool->need = (unsigned)need;
	if (pool->nr < pool->need)
		return -EAGAIN;

	/* nothing below can fail */
	grow(xa, top, pool);
	for (uint64_t at = index;; at = (at | node_mask(0)) + 1) {
		uint64_t bits = leaf_bits(at, last);

		walk_create(xa, at, pool, &path);
		for (uint64_t left = bits; left; left &= left - 1)
			store_release(&path.node[0]->slots[__builtin_ctzll(left)], entry);      /* pairs with xa_load() */
		set_bits(&path, at, bits, PRESENT);
		if ((at | node_mask(0)) >= last)
			break;
	}
	pool->need = 0;
	return 0;
}

void xa_replace(struct xarray *xa, uint64_t index, uint64_t nr, void *entry)
{
	IOMAP_BUG_ON(!entry);
	uint64_t last = last_of(index, nr);
	struct path path;

	for (uint64_t at = index;; at = (at | node_mask(0)) + 1) {
		uint64_t bits = leaf_bits(at, last);

		walk(xa, at, &path);
		IOMAP_BUG_ON(bits & ~load_acquire(&path.node[0]->bits[PRESENT]));
		for (uint64_t left = bits; left; left &= left - 1)
			store_release(&path.node[0]->slots[__builtin_ctzll(left)], entry);      /* pairs with xa_load() */
		if ((at | node_mask(0)) >= last)
			return;
	}
}

/* Unlinks the nodes of @path that became empty. Their bits in the nodes above are clear already. */
static void prune(struct xarray *xa, struct path *path, uint64_t index)
{
	for (unsigned level = 0; level <= path->top; level++) {
		struct xa_node *node = path->node[level];

		if (load_acquire(&node->bits[PRESENT]))
			return;
		if (level == path->top)
			store_release(&xa->root, NULL);
		else
			store_release(&path->node[level + 1]->slots[slot_of(index, (level + 1) * XA_SHIFT)], NULL);
		if (MUTANT(M_FREE_NO_GRACE))
			free_node(&node->rcu);
		else
			rcu_free(&node->rcu, free_node);
	}
}

/* Takes off roots that only lead to the lowest indices. A reader inside one still finds its way down. */
static void shrink(struct xarray *xa)
{
	struct xa_node *root = load_acquire(&xa->root);

	while (root && root->shift && load_acquire(&root->bits[PRESENT]) == 1) {
		struct xa_node *child = load_acquire(&root->slots[0]);

		store_release(&xa->root, child);
		rcu_free(&root->rcu, free_node);
		root = child;
	}
}

void xa_erase(struct xarray *xa, uint64_t index, uint64_t nr)
{
	uint64_t at = index, last = last_of(index, nr);
	struct path path;

	while (find(xa, &at, last, PRESENT, &path)) {
		struct xa_node *leaf = path.node[0];
		uint64_t bits = load_acquire(&leaf->bits[PRESENT]) & leaf_bits(at, last);

		for (unsigned kind = 0; kind < XA_KINDS; kind++)
			clear_bits(&path, at, bits, kind);
		for (uint64_t left = bits; left; left &= left - 1)
			store_release(&leaf->slots[__builtin_ctzll(left)], NULL);
		prune(xa, &path, at);
		if ((at | node_mask(0)) >= last)
			break;
		at = (at | node_mask(0)) + 1;
	}
	shrink(xa);
}

/* --- all nodes -------------------------------------------------------------------------------------------- */

/*
 * Calls @visit for every node, children first, until it returns something else than 0. Levels are counted, not
 * believed.
 */
static int each_node(const struct xarray *xa, int (*visit)(const struct xarray *xa, struct xa_node *node, unsigned shift,
							  void *arg), void *arg)
{
	struct path path;
	unsigned next[XA_LEVELS];       /* the slot to look at when we are back at this level */
	struct xa_node *root = load_acquire(&xa->root);

	if (!root)
		return 0;
	unsigned level = path.top = root->shift / XA_SHIFT;
	path.node[level] = root;
	next[level] = 0;
	for (;;) {
		if (level && next[level] < XA_SLOTS) {
			struct xa_node *child = load_acquire(&path.node[level]->slots[next[level]++]);

			if (child) {
				path.node[--level] = child;
				next[level] = 0;
			}
			continue;
		}
		int ret = visit(xa, path.node[level], level * XA_SHIFT, arg);
		if (ret || level++ == path.top)
			return ret;
	}
}

static int visit_free(const struct xarray *xa, struct xa_node *node, unsigned shift, void *arg)
{
	(void)shift;
	(void)arg;
	mem_free(xa->mem, node, sizeof(*node));
	return 0;
}

void xa_fini(struct xarray *xa)
{
	each_node(xa, visit_free, NULL);
	store_release(&xa->root, NULL);
}

static int visit_count(const struct xarray *xa, struct xa_node *node, unsigned shift, void *arg)
{
	(void)xa;
	(void)node;
	(void)shift;
	++*(uint64_t *)arg;
	return 0;
}

uint64_t xa_nodes(const struct xarray *xa)
{
	uint64_t nr = 0;

	each_node(xa, visit_count, &nr);
	return nr;
}

struct complaint { char *why; size_t len; };

static int broken(struct complaint *c, unsigned shift, unsigned kind, const char *what)
{
	static const char *const names[] = { "dirty mark", "writeback mark", "towrite mark", "present" };

	snprintf(c->why, c->len, "xarray node at shift %u, %s: %s", shift, names[kind], what);
	return -EUCLEAN;
}

static int visit_check(const struct xarray *xa, struct xa_node *node, unsigned shift, void *arg)
{
	struct complaint *c = arg;
	uint64_t want[XA_KINDS] = { 0 };
	uint64_t present = load_acquire(&node->bits[PRESENT]);

	if (node->shift != shift)
		return broken(c, shift, PRESENT, "the node says another shift");
	if (node->mem != xa->mem)
		return broken(c, shift, PRESENT, "the node is of another tree");
	for (unsigned slot = 0; slot < XA_SLOTS; slot++) {
		uint64_t bit = UINT64_C(1) << slot;
		void *p = load_acquire(&node->slots[slot]);

		if (!p)
			continue;
		if (slot > UINT64_MAX >> shift)
			return broken(c, shift, PRESENT, "a slot past the last index is taken");
		want[PRESENT] |= bit;
		for (unsigned mark = 0; shift && mark < XA_MARKS; mark++)
			if (load_acquire(&((struct xa_node *)p)->bits[mark]))
				want[mark] |= bit;
	}
	if (present != want[PRESENT])
		return broken(c, shift, PRESENT, "bits and slots differ");
	if (!present)
		return broken(c, shift, PRESENT, "the node is empty");
	if (load_acquire(&xa->root) == node && shift && present == 1)
		return broken(c, shift, PRESENT, "the root is higher than the largest index needs");
	for (unsigned mark = 0; mark < XA_MARKS; mark++) {
		uint64_t has = load_acquire(&node->bits[mark]);

		if (has & ~present)
			return broken(c, shift, mark, "an empty slot is marked");
		if (shift && has != want[mark])
			return broken(c, shift, mark, "bits do not say what the children say");
	}
	return 0;
}

int xa_check(const struct xarray *xa, char *why, size_t why_len)
{
	struct complaint c = { why, why_len };
	struct xa_node *root = load_acquire(&xa->root);

	if (root && (root->shift % XA_SHIFT || root->shift > 63))
		return broken(&c, root->shift, PRESENT, "no root stands at this shift");
	return each_node(xa, visit_check, &c);
}
