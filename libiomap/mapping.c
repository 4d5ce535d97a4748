/*
 * mapping.c - the page cache of one file
 *
 * A lookup finds a folio under RCU, takes a reference, and looks again in the same slot: the descriptor is type-stable, so
 * the reference may be of a folio that has moved to another file meanwhile, but then the slot no longer holds it. Whoever
 * sleeps for the folio lock checks mapping and index once more.
 *
 * Invariants: a folio's index is a multiple of its pages; every slot it covers holds it and no other slot does; DIRTY and
 *             WRITEBACK marks of its first slot equal its flags; TOWRITE implies DIRTY; nr_pages is the sum of all folios.
 * Locking:    tree_lock, inside it the folio's state lock, for every change of bits that moves a mark; the folio lock around both
 *             but in completions.
 * Kernel:     mm/filemap.c. Differs: large folios fill all their slots; splitting relabels, bits and charges are cut exactly.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "mapping.h"
#include "mutant.h"

void mapping_init(struct mapping *m, struct zone *zone, struct wb *wb, const struct mapping_ops *ops, void *owner,
		  struct ifs_geometry geom, unsigned max_order)
{
	m->zone = zone;
	m->wb = wb;
	m->ops = ops;
	m->owner = owner;
	m->geom = geom;
	m->min_order = geom.block_shift > PAGE_SHIFT ? geom.block_shift - PAGE_SHIFT : 0;
	store_relaxed(&m->max_order, max_order);
	mutex_init(&m->tree_lock, LOCK_TREE);
	xa_init(&m->tree, &zone->mem);
	store_relaxed(&m->nr_pages, 0);
	store_relaxed(&m->dontcache_dirty, 0);
	rwsem_init(&m->invalidate_lock, LOCK_INVALIDATE);
}

void mapping_fini(struct mapping *m)
{
	mutex_lock(&m->tree_lock);      /* reclaim may still be on its way out of it */
	IOMAP_BUG_ON(!mapping_is_empty(m));
	mutex_unlock(&m->tree_lock);
	xa_fini(&m->tree);
	mutex_fini(&m->tree_lock);
	rwsem_fini(&m->invalidate_lock);
}

/* State lock held. */
static void account(struct mapping *m, const struct charge *c)
{
	wb_account(m->wb, c);
	if (c->dontcache)
		add_relaxed(&m->dontcache_dirty, c->dontcache);
}

/* --- lookup ----------------------------------------------------------------------------------------------- */

struct iomap_folio *mapping_get(struct mapping *m, pgoff_t index)
{
	for (;;) {
		struct iomap_folio *f, *again = NULL;
		bool got = false;

		rcu_enter();
		f = xa_load(&m->tree, index);
		if (f && (got = folio_tryget(f)))
			again = xa_load(&m->tree, index);
		rcu_exit();
		if (!f || (got && again == f))
			return f;
		if (got && !MUTANT(M_LEAKED_REF))
			folio_put(m->zone, f);
	}
}

static bool covers(const struct mapping *m, const struct iomap_folio *f, pgoff_t index)
{
	return folio_mapping(f) == m && folio_index(f) <= index && index - folio_index(f) < folio_pages(f);
}

struct iomap_folio *mapping_get_locked(struct mapping *m, pgoff_t index)
{
	struct iomap_folio *f;

	while ((f = mapping_get(m, index))) {
		folio_lock(m->zone, f);
		if (covers(m, f, index) || MUTANT(M_NO_RECHECK))
			break;
		folio_unlock(m->zone, f);
		folio_put(m->zone, f);
	}
	return f;
}

int mapping_get_trylocked(struct mapping *m, pgoff_t index, struct iomap_folio **out)
{
	struct iomap_folio *f;

	while ((f = mapping_get(m, index))) {
		if (!folio_trylock(f)) {
			folio_put(m->zone, f);
			return -EAGAIN;
		}
		if (covers(m, f, index))
			break;
		folio_unlock(m->zone, f);
		folio_put(m->zone, f);
	}
	*out = f;
	return 0;
}

/*
 * The folio that covers page *@at but begins before it, if it has the mark, which stands at its first slot: *@at moves there.
 * Under RCU, so the caller looks again once it has a reference.
 */
static struct iomap_folio *straddler(struct mapping *m, pgoff_t *at, bool marked, enum xa_mark mark)
{
	struct iomap_folio *f = xa_load(&m->tree, *at);
	pgoff_t head;

	if (!f)
		return NULL;
	head = folio_index(f);
	if (head >= *at || (marked && !xa_get_mark(&m->tree, head, mark)))
		return NULL;
	*at = head;
	return f;
}

static struct iomap_folio *next(struct mapping *m, pgoff_t *index, pgoff_t last, bool marked, enum xa_mark mark)
{
	for (;;) {
		pgoff_t at = *index;
		struct iomap_folio *f, *again = NULL;
		bool got = false;

		rcu_enter();
		f = straddler(m, &at, marked, mark);
		if (!f)
			f = marked ? xa_find_marked(&m->tree, &at, last, mark) : xa_find(&m->tree, &at, last);
		if (f && (got = folio_tryget(f)))
			again = xa_load(&m->tree, at);
		rcu_exit();
		if (!f)
			return NULL;
		if (got && again == f) {
			*index = at;
			return f;
		}
		if (got)
			folio_put(m->zone, f);
	}
}

struct iomap_folio *mapping_next_marked(struct mapping *m, pgoff_t *index, pgoff_t last, enum xa_mark mark)
{
	return next(m, index, last, true, mark);
}

struct iomap_folio *mapping_next(struct mapping *m, pgoff_t *index, pgoff_t last)
{
	return next(m, index, last, false, 0);
}

struct iomap_folio *mapping_next_busy(struct mapping *m, pgoff_t *index, pgoff_t last)
{
	struct iomap_folio *f = NULL;

	while (!f && *index <= last) {
		pgoff_t dirty = *index, flying = *index;
		struct iomap_folio *d, *w;

		mutex_lock(&m->tree_lock);      /* both marks of one moment: folios go from one to the other and back */
		d = straddler(m, &dirty, true, XA_MARK_DIRTY);
		if (!d)
			d = xa_find_marked(&m->tree, &dirty, last, XA_MARK_DIRTY);
		w = straddler(m, &flying, true, XA_MARK_WRITEBACK);
		if (!w)
			w = xa_find_marked(&m->tree, &flying, last, XA_MARK_WRITEBACK);
		f = d && (!w || dirty <= flying) ? d : w;
		if (f && !folio_tryget(f))
			f = NULL;
		else if (f)
			*index = f == d ? dirty : flying;
		mutex_unlock(&m->tree_lock);
		if (!d && !w)
			break;
	}
	return f;
}

void mapping_settle(struct mapping *m)
{
	mutex_lock(&m->tree_lock);
	mutex_unlock(&m->tree_lock);
}

bool mapping_marked_in(struct mapping *m, uint64_t start, uint64_t end, enum xa_mark mark)
{
	pgoff_t at = start >> PAGE_SHIFT;
	struct iomap_folio *f = end > start ? mapping_next_marked(m, &at, (end - 1) >> PAGE_SHIFT, mark) : NULL;

	if (f)
		folio_put(m->zone, f);
	return f;
}

bool mapping_has(struct mapping *m, pgoff_t index)
{
	bool has;

	rcu_enter();
	has = xa_load(&m->tree, index) != NULL;
	rcu_exit();
	return has;
}

/* --- add, remove, split ----------------------------------------------------------------------------------- */

/* The largest order <= @order at @index that no cached folio is in the way of, or -EEXIST. */
static int free_order(struct mapping *m, pgoff_t index, unsigned order)
{
	pgoff_t at = index;
	struct iomap_folio *f;

	rcu_enter();
	f = xa_find(&m->tree, &at, index + (UINT64_C(1) << order) - 1);
	rcu_exit();
	if (!f)
		return (int)order;
	if (at == index)
		return -EEXIST;
	return (int)log2_floor(at - index);
}

static int make(struct mapping *m, unsigned order, struct iomap_folio **out)
{
	unsigned blocks = (unsigned)((PAGE_BYTES << order) >> m->geom.block_shift);
	struct ifs *ifs = NULL;
	int ret;

	if (blocks > SMALL_BLOCKS && !(ifs = ifs_alloc(&m->zone->mem, blocks)))
		return -ENOMEM;
	ret = folio_alloc(m->zone, order, out);
	if (ret) {
		if (ifs)
			ifs_free_rcu(ifs);
		return ret;
	}
	store_relaxed(&(*out)->ifs, ifs);
	return 0;
}

static void unmake(struct mapping *m, struct iomap_folio *f)
{
	struct ifs *ifs = load_relaxed(&f->ifs);

	store_relaxed(&f->ifs, NULL);
	ifs_free_rcu(ifs);
	folio_unlock(m->zone, f);
	folio_put(m->zone, f);
	if (MUTANT(M_DOUBLE_PUT))
		folio_put(m->zone, f);
}

/* Puts the new folio @f into the tree: 0 or what xa_store() and xa_pool_fill() say. */
static int insert(struct mapping *m, struct iomap_folio *f, pgoff_t index)
{
	struct xa_pool pool = { 0 };
	int ret;

	folio_identity_begin(f);        /* a reader with a stale pointer must not take half of this for a whole */
	store_relaxed(&f->mapping, m);
	store_relaxed(&f->index, index);
	folio_identity_end(f);
	folio_get(f);                   /* the tree's */
	for (;;) {
		mutex_lock(&m->tree_lock);
		ret = xa_store(&m->tree, index, folio_pages(f), f, &pool);
		if (!ret)
			add_relaxed(&m->nr_pages, folio_pages(f));
		mutex_unlock(&m->tree_lock);
		if (ret != -EAGAIN)
			break;
		ret = xa_pool_fill(&m->tree, &pool);
		if (ret)
			break;
	}
	xa_pool_fini(&m->tree, &pool);
	if (ret) {
		folio_identity_begin(f);
		store_relaxed(&f->mapping, NULL);
		folio_identity_end(f);
		folio_put(m->zone, f);
	}
	return ret;
}

int mapping_create(struct mapping *m, pgoff_t index, unsigned order, unsigned flags, struct iomap_folio **out)
{
	unsigned max = load_relaxed(&m->max_order);
	struct iomap_folio *f;
	bool evicted = false;

	if (max < m->min_order)
		max = m->min_order;
	order = (unsigned)max_u64(min_u64(order, max), m->min_order);
	index = round_down(index, UINT64_C(1) << m->min_order);
	while (order > m->min_order && index & ((UINT64_C(1) << order) - 1))
		order--;
	for (;;) {
		int ret = free_order(m, index, order);

		if (ret < 0)
			return ret;
		if ((unsigned)ret < order) {
			if (flags & MAPPING_EXACT)
				return -EEXIST;
			order = (unsigned)ret;
			if (order < m->min_order)
				return -EEXIST;
		}
		ret = make(m, order, &f);
		/* A large run is worth evicting for where memory is short anyway; where it is only in pieces, a smaller one does. */
		if (ret && order > m->min_order) {
			bool is_short = arena_free_bytes(&m->zone->arena) < 2 * m->low_bytes + (PAGE_BYTES << order);
			bool again = is_short && !evicted && !m->ops->memory_short(m, order, false);

			evicted = true;
			if (again)
				continue;
			if (flags & MAPPING_EXACT)
				return ret;
			order--;
			continue;
		}
		if (ret) {
			ret = m->ops->memory_short(m, order, flags & MAPPING_MAY_WAIT);
			if (ret)
				return ret;
			continue;
		}
		if (flags & MAPPING_DROPBEHIND)
			folio_flags_set(f, FOLIO_DROPBEHIND);   /* before anybody else can see it */
		ret = insert(m, f, index);
		if (!ret)
			break;
		unmake(m, f);
		if (ret != -EEXIST || (flags & MAPPING_EXACT))
			return ret;
	}
	m->ops->added(m, f, !(flags & MAPPING_WRITE));
	if (arena_free_bytes(&m->zone->arena) < m->low_bytes)
		m->ops->memory_low(m);
	*out = f;
	return 0;
}

void mapping_remove(struct mapping *m, struct iomap_folio *f)
{
	struct zone *zone = m->zone;
	struct ifs *ifs;

	lockdep_assert_held(f);
	IOMAP_BUG_ON(folio_mapping(f) != m);
	IOMAP_BUG_ON(folio_flags(f) & (FOLIO_DIRTY | FOLIO_WRITEBACK));
	m->ops->removed(m, f, true);
	if (!MUTANT(M_IDENTITY_NOT_COUNTED))
		folio_identity_begin(f);
	mutex_lock(&m->tree_lock);
	xa_erase(&m->tree, folio_index(f), folio_pages(f));
	sub_relaxed(&m->nr_pages, folio_pages(f));
	mutex_unlock(&m->tree_lock);    /* reclaim: the inode may be gone from here on */
	ifs = load_relaxed(&f->ifs);
	store_relaxed(&f->ifs, NULL);
	store_relaxed(&f->mapping, NULL);
	if (!MUTANT(M_IDENTITY_NOT_COUNTED))
		folio_identity_end(f);
	ifs_free_rcu(ifs);
	folio_put(zone, f);
}

/* Marks follow flags. Tree lock held. */
static void update_marks(struct mapping *m, const struct iomap_folio *f, uint32_t was)
{
	uint32_t now = folio_flags(f), changed = was ^ now;
	pgoff_t index = folio_index(f);

	/* What is gained comes first: who looks without the lock must not see a folio in between as neither. */
	if (changed & now & FOLIO_DIRTY)
		xa_set_mark(&m->tree, index, XA_MARK_DIRTY);
	if (changed & now & FOLIO_WRITEBACK)
		xa_set_mark(&m->tree, index, XA_MARK_WRITEBACK);
	if (changed & was & FOLIO_DIRTY) {
		xa_clear_mark(&m->tree, index, XA_MARK_DIRTY);
		xa_clear_mark(&m->tree, index, XA_MARK_TOWRITE);
	}
	if (changed & was & FOLIO_WRITEBACK)
		xa_clear_mark(&m->tree, index, XA_MARK_WRITEBACK);
}

int mapping_halve(struct mapping *m, struct iomap_folio *f, struct iomap_folio **out)
{
	unsigned order = folio_order(f), blocks = ifs_blocks(f, &m->geom) / 2;
	struct iomap_folio *right = f + (UINT64_C(1) << order) / 2;
	struct ifs *old = load_relaxed(&f->ifs), *left_ifs = NULL, *right_ifs = NULL;
	struct charge before, left, sum, c = { 0 };
	bool towrite;

	lockdep_assert_held(f);
	if (order <= m->min_order)
		return -EINVAL;
	if (folio_is_writeback(f))      /* none can start: we hold the folio lock */
		return -EBUSY;
	if (blocks > SMALL_BLOCKS) {
		left_ifs = ifs_alloc(&m->zone->mem, blocks);
		right_ifs = ifs_alloc(&m->zone->mem, blocks);
		if (!left_ifs || !right_ifs) {
			ifs_free_rcu(left_ifs);
			ifs_free_rcu(right_ifs);
			add_relaxed(&m->zone->split_failures, 1);
			return -ENOMEM;
		}
	}
	m->ops->removed(m, f, false);
	folio_identity_begin(f);
	folio_identity_begin(right);
	mutex_lock(&m->tree_lock);
	folio_state_lock(f);
	ifs_receipt(f, &m->geom, &before);
	towrite = xa_get_mark(&m->tree, folio_index(f), XA_MARK_TOWRITE);

	store_relaxed(&right->mapping, m);
	store_relaxed(&right->index, folio_index(f) + (UINT64_C(1) << order) / 2);
	store_relaxed(&right->order, (uint8_t)(order - 1));
	store_relaxed(&right->ifs, right_ifs);
	store_relaxed(&right->stable, 0);
	right->tries = f->tries;
	right->error = f->error;
	right->next = right->prev = FRAME_NONE;
	for (unsigned i = 0; i < IFS_MAPS; i++)
		store_relaxed(&right->small[i], 0);
	store_relaxed(&right->flags, FOLIO_LOCKED | (folio_flags(f) & (FOLIO_REFERENCED | FOLIO_DROPBEHIND)));
	store_release(&right->refs, 2);         /* the tree's and the caller's */
	ifs_copy_bits(right, f, &m->geom, blocks);

	ifs_shrink_to(f, &m->geom, left_ifs, (uint8_t)(order - 1));

	xa_replace(&m->tree, folio_index(right), folio_pages(right), right);
	update_marks(m, right, 0);
	update_marks(m, f, before.dirty ? FOLIO_DIRTY : 0);
	if (towrite && folio_is_dirty(right))
		xa_set_mark(&m->tree, folio_index(right), XA_MARK_TOWRITE);

	ifs_receipt(f, &m->geom, &left);
	ifs_receipt(right, &m->geom, &sum);
	sum.dirty += left.dirty;
	sum.pinned += left.pinned;
	sum.failed += left.failed;
	sum.dontcache += left.dontcache;
	c.dirty = sum.dirty - before.dirty;     /* below zero where the granule was the folio */
	c.cancelled = (uint64_t)(before.dirty - sum.dirty);
	c.failed = sum.failed - before.failed;
	c.dontcache = sum.dontcache - before.dontcache;
	c.pinned = sum.pinned - before.pinned;
	c.pin_dropped = (uint64_t)(before.pinned - sum.pinned);
	account(m, &c);
	folio_state_unlock(f);
	mutex_unlock(&m->tree_lock);
	folio_identity_end(right);
	folio_identity_end(f);
	ifs_free_rcu(old);
	lockdep_acquire(LOCK_FOLIO, right, folio_index(right), true);
	add_relaxed(&m->zone->splits, 1);
	m->ops->added(m, f, false);
	m->ops->added(m, right, false);
	*out = right;
	return 0;
}

/* --- block bits ------------------------------------------------------------------------------------------- */

void mapping_set_uptodate(struct mapping *m, struct iomap_folio *f, unsigned first, unsigned nr)
{
	folio_state_lock(f);
	ifs_set_uptodate(f, &m->geom, first, nr);
	folio_state_unlock(f);
}

static uint32_t begin(struct mapping *m, struct iomap_folio *f)
{
	mutex_lock(&m->tree_lock);
	folio_state_lock(f);
	return folio_flags(f);
}

static void end(struct mapping *m, struct iomap_folio *f, uint32_t was, const struct charge *c)
{
	update_marks(m, f, was);
	account(m, c);
	folio_state_unlock(f);
	mutex_unlock(&m->tree_lock);
}

uint64_t mapping_set_dirty(struct mapping *m, struct iomap_folio *f, unsigned first, unsigned nr)
{
	struct charge c = { 0 };

	lockdep_assert_held(f);
	if (folio_is_dirty(f)) {        /* only who holds the folio lock clears it: no mark will move */
		folio_state_lock(f);
		ifs_set_dirty(f, &m->geom, first, nr, &c);
		account(m, &c);
		folio_state_unlock(f);
	} else {
		uint32_t was = begin(m, f);

		ifs_set_dirty(f, &m->geom, first, nr, &c);
		end(m, f, was, &c);
	}
	return c.dirtied;
}

void mapping_keep(struct mapping *m, struct iomap_folio *f)
{
	struct charge c = { 0 };

	lockdep_assert_held(f);
	if (!(folio_flags(f) & FOLIO_DROPBEHIND) || MUTANT(M_STILL_DROPPED))
		return;
	folio_state_lock(f);            /* no mark moves */
	ifs_keep(f, &m->geom, &c);
	account(m, &c);
	folio_state_unlock(f);
}

void mapping_redirty(struct mapping *m, struct iomap_folio *f, unsigned first, unsigned nr)
{
	struct charge c = { 0 };
	uint32_t was = begin(m, f);

	lockdep_assert_held(f);
	ifs_redirty(f, &m->geom, first, nr, &c);
	end(m, f, was, &c);
}

/* begin() of a mutant that takes the dirty mark away before it puts blocks in flight. */
static uint32_t begin_unmarked(struct mapping *m, struct iomap_folio *f)
{
	begin(m, f);
	xa_clear_mark(&m->tree, folio_index(f), XA_MARK_DIRTY);
	folio_state_unlock(f);
	mutex_unlock(&m->tree_lock);
	begin(m, f);
	if (folio_is_dirty(f))
		xa_set_mark(&m->tree, folio_index(f), XA_MARK_DIRTY);
	return folio_flags(f);
}

bool mapping_claim(struct mapping *m, struct iomap_folio *f, unsigned from, unsigned to, bool retry_failed,
		   struct block_set *out, bool *busy)
{
	struct charge c = { 0 };
	uint32_t was = MUTANT(M_SEEN_AS_CLEAN) ? begin_unmarked(m, f) : begin(m, f);

	lockdep_assert_held(f);
	ifs_claim(f, &m->geom, from, to, retry_failed, out, busy, &c);
	end(m, f, was, &c);
	return c.submitted;
}

void mapping_cancel(struct mapping *m, struct iomap_folio *f, unsigned first, unsigned nr)
{
	struct charge c = { 0 };
	uint32_t was;

	lockdep_assert_held(f);
	if (!folio_is_dirty(f))
		return;
	was = begin(m, f);
	ifs_cancel(f, &m->geom, first, nr, &c);
	if (MUTANT(M_CHARGE_KEPT))
		c.dirty = 0;
	end(m, f, was, &c);
}

void mapping_forget_clean(struct mapping *m, struct iomap_folio *f)
{
	lockdep_assert_held(f);
	folio_identity_begin(f);        /* a reader under way must not believe what it copied */
	folio_state_lock(f);
	ifs_forget_clean(f, &m->geom);
	folio_state_unlock(f);
	folio_identity_end(f);
}

void mapping_complete(struct mapping *m, struct iomap_folio *f, unsigned first, unsigned nr, int error, bool keep)
{
	struct charge c = { 0 };
	uint32_t was = begin(m, f);

	ifs_complete(f, &m->geom, first, nr, error, keep, &c);
	if (error && !keep)     /* the cache has the only copy of what was given up */
		ifs_keep(f, &m->geom, &c);
	if (MUTANT(M_COMPLETION_CLEANS) && !error)
		ifs_cancel(f, &m->geom, first, nr, &c);
	if (error) {
		f->error = (int16_t)error;
		if (f->tries < UINT8_MAX)
			f->tries++;
	} else if (!(folio_flags(f) & (FOLIO_FAILED | FOLIO_WRITEBACK))) {
		f->error = 0;
		f->tries = 0;
	}
	end(m, f, was, &c);
	folio_wake(m->zone, f);
}

void mapping_tag_towrite(struct mapping *m, pgoff_t first, pgoff_t last)
{
	enum { BATCH = 4096 };
	uint64_t n;

	do {
		struct iomap_folio *f;

		mutex_lock(&m->tree_lock);
		f = xa_load(&m->tree, first);
		if (f)          /* its mark stands at its first slot */
			first = folio_index(f);
		n = xa_copy_mark(&m->tree, &first, last, XA_MARK_DIRTY, XA_MARK_TOWRITE, BATCH);
		mutex_unlock(&m->tree_lock);
	} while (n == BATCH && first <= last);
}

void mapping_clear_towrite(struct mapping *m, struct iomap_folio *f)
{
	lockdep_assert_held(f);
	mutex_lock(&m->tree_lock);
	xa_clear_mark(&m->tree, folio_index(f), XA_MARK_TOWRITE);
	mutex_unlock(&m->tree_lock);
}

/* --- checker ---------------------------------------------------------------------------------------------- */

static const char *check_folio(struct mapping *m, struct iomap_folio *f, pgoff_t at)
{
	uint32_t flags = folio_flags(f);

	if (folio_mapping(f) != m)
		return "is in a tree that is not its mapping's";
	if (folio_index(f) != at)
		return "stands at a slot that is not its index";
	if (at & (folio_pages(f) - 1))
		return "has a misaligned index";
	if (folio_order(f) < m->min_order || folio_order(f) > MAX_ORDER)
		return "has an order out of bounds";
	if (!load_relaxed(&f->refs))
		return "is in the tree without a reference";
	for (pgoff_t i = at; i < at + folio_pages(f); i++)
		if (xa_load(&m->tree, i) != f)
			return "does not fill all its slots";
	if (xa_get_mark(&m->tree, at, XA_MARK_DIRTY) != !!(flags & FOLIO_DIRTY))
		return "dirty mark and flag disagree";
	if (xa_get_mark(&m->tree, at, XA_MARK_WRITEBACK) != !!(flags & FOLIO_WRITEBACK))
		return "writeback mark and flag disagree";
	if (xa_get_mark(&m->tree, at, XA_MARK_TOWRITE) && !(flags & FOLIO_DIRTY))
		return "is marked towrite but not dirty";
	return NULL;
}

int mapping_check(struct mapping *m, struct mapping_sums *sums, char *why, size_t why_len)
{
	uint64_t pages = 0;
	pgoff_t at = 0;
	struct iomap_folio *f;
	int ret;

	mutex_lock(&m->tree_lock);
	ret = xa_check(&m->tree, why, why_len);
	while (!ret && (f = xa_find(&m->tree, &at, UINT64_MAX))) {
		struct charge c;
		const char *what;

		folio_state_lock(f);
		what = check_folio(m, f, at);
		ret = what ? -EUCLEAN : ifs_check(f, &m->geom, why, why_len);
		ifs_receipt(f, &m->geom, &c);
		if (what) {
			char name[192];

			folio_describe(f, name, sizeof(name));
			snprintf(why, why_len, "%s %s", name, what);
		}
		folio_state_unlock(f);
		sums->dirty += c.dirty;
		sums->writeback += c.writeback;
		sums->pinned += c.pinned;
		sums->failed += c.failed;
		sums->dontcache += c.dontcache;
		pages += folio_pages(f);
		sums->folios[folio_order(f)]++;
		at += folio_pages(f);
		if (!at)
			break;
	}
	if (!ret && pages != load_relaxed(&m->nr_pages)) {
		snprintf(why, why_len, "mapping: %llu pages in the tree, nr_pages says %llu", (unsigned long long)pages,
			 (unsigned long long)load_relaxed(&m->nr_pages));
		ret = -EUCLEAN;
	}
	sums->pages += pages;
	sums->dontcache_files += load_relaxed(&m->dontcache_dirty);
	mutex_unlock(&m->tree_lock);
	return ret;
}
