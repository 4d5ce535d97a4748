/*
 * catalog.c - a list of records with names: the objects, or the snapshots
 *
 * All records are in memory, in an array that is the contents of a tree; a hash table finds a name. What changes marks its
 * block of records, which cow_catalog_write() puts to a new place.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "internal.h"

static uint32_t *chain(const struct catalog *c, const char *name)
{
	return &c->head[cow_sum(name, strlen(name)) & (c->nr_heads - 1)];
}

static void link_record(struct catalog *c, uint32_t index)
{
	uint32_t *at = c->rec[index].name[0] ? chain(c, c->rec[index].name) : &c->free;

	c->next[index] = *at;
	*at = index;
}

/* Room for @nr records, those from c->nr on free. */
static int resize(struct catalog *c, uint32_t nr)
{
	struct cow_record *rec = realloc(c->rec, (size_t)nr * sizeof(*rec));
	uint32_t *next, *head, heads = 16;

	if (!rec)
		return -ENOMEM;
	c->rec = rec;
	next = realloc(c->next, (size_t)nr * sizeof(*next));
	if (!next)
		return -ENOMEM;
	c->next = next;
	while (heads < nr)
		heads *= 2;
	head = malloc(heads * sizeof(*head));
	if (!head)
		return -ENOMEM;
	free(c->head);
	c->head = head;
	c->nr_heads = heads;
	memset(head, 0xff, heads * sizeof(*head));      /* COW_NONE */
	memset(rec + c->nr, 0, (size_t)(nr - c->nr) * sizeof(*rec));
	c->nr = nr;
	c->free = COW_NONE;
	for (uint32_t i = nr; i--;)
		link_record(c, i);
	return 0;
}

int cow_catalog_load(struct catalog *c, const struct tree_io *io, const struct cow_ref *ref)
{
	uint64_t blocks = ref->size / COW_BLOCK;
	int ret;

	*c = (struct catalog) { .free = COW_NONE };
	if (ref->size % COW_BLOCK || blocks > COW_NONE / COW_RECORDS / 2)
		return -EUCLEAN;
	ret = cow_tree_load(&c->tree, io, ref);
	if (!ret)
		ret = resize(c, (uint32_t)(blocks ? blocks : 1) * COW_RECORDS);
	if (!ret && !cow_tree_make(&c->tree, 0))
		ret = -ENOMEM;
	for (uint64_t idx = 0; idx < blocks && !ret; idx++) {
		struct node *leaf = cow_tree_make(&c->tree, idx);
		struct cow_ptr *ptr = leaf ? &leaf->e[idx % COW_FANOUT] : NULL;

		if (!ptr)
			ret = -ENOMEM;
		else if (ptr->blk)
			ret = io->read(io->priv, ptr, c->rec + idx * COW_RECORDS);
	}
	for (uint32_t i = 0; i < c->nr && !ret; i++) {
		const struct cow_record *rec = &c->rec[i];

		if (memchr(rec->name, '\0', COW_NAME_MAX + 1) == NULL || rec->tree.levels > COW_LEVELS)
			ret = -EUCLEAN;
		c->used += rec->name[0] != '\0';
	}
	if (ret)
		cow_catalog_fini(c);
	else
		ret = resize(c, c->nr);         /* links what was read */
	return ret;
}

void cow_catalog_fini(struct catalog *c)
{
	if (c->tree.top)
		cow_tree_fini(&c->tree);
	free(c->rec);
	free(c->next);
	free(c->head);
	*c = (struct catalog) { .free = COW_NONE };
}

uint32_t cow_catalog_find(const struct catalog *c, const char *name)
{
	uint32_t i = *chain(c, name);

	while (i != COW_NONE && strcmp(c->rec[i].name, name) != 0)
		i = c->next[i];
	return i;
}

int cow_catalog_prepare(struct catalog *c)
{
	uint32_t old = c->nr;
	int ret;

	if (c->free != COW_NONE)
		return 0;
	for (uint32_t i = old; i < 2 * old; i += COW_RECORDS)
		if (!cow_tree_make(&c->tree, i / COW_RECORDS))
			return -ENOMEM;
	ret = resize(c, 2 * old);
	return ret;
}

uint32_t cow_catalog_add(struct catalog *c, const char *name)
{
	uint32_t index = c->free;

	c->free = c->next[index];
	c->rec[index] = (struct cow_record) { .generation = 0 };
	strcpy(c->rec[index].name, name);       /* length checked by the caller */
	link_record(c, index);
	c->used++;
	return index;
}

void cow_catalog_remove(struct catalog *c, uint32_t index)
{
	uint32_t *at = chain(c, c->rec[index].name);

	while (*at != index)
		at = &c->next[*at];
	*at = c->next[index];
	c->rec[index] = (struct cow_record) { .generation = 0 };
	link_record(c, index);
	c->used--;
}

static uint8_t *record_state(const struct catalog *c, uint32_t index)
{
	uint64_t idx = index / COW_RECORDS;

	return &cow_tree_find(&c->tree, idx)->state[idx % COW_FANOUT];
}

unsigned cow_catalog_cost(const struct catalog *c, uint32_t index)
{
	return cow_tree_cost(&c->tree, index / COW_RECORDS) + !(*record_state(c, index) & BLOCK_STALE);
}

void cow_catalog_touch(struct catalog *c, uint32_t index)
{
	cow_tree_dirty(&c->tree, index / COW_RECORDS);
	*record_state(c, index) |= BLOCK_STALE;
}

/* --- to the device ---------------------------------------------------------------------------------------- */

struct writing {
	struct catalog *catalog;
	const struct tree_io *io;
	struct space *space;
	pthread_mutex_t *lock;
	uint64_t count;
};

static int count_records(void *priv, struct node *leaf, uint64_t first)
{
	struct writing *w = priv;

	(void)first;
	for (unsigned i = 0; i < COW_FANOUT; i++)
		w->count += (leaf->state[i] & BLOCK_STALE) != 0;
	return 0;
}

uint64_t cow_catalog_count_dirty(struct catalog *c)
{
	struct writing w = { .catalog = c };

	cow_tree_each_dirty(&c->tree, count_records, &w);
	return w.count + cow_tree_count_dirty(&c->tree);
}

static int write_records(void *priv, struct node *leaf, uint64_t first)
{
	struct writing *w = priv;

	for (unsigned i = 0; i < COW_FANOUT; i++) {
		const struct cow_record *rec = w->catalog->rec + (first + i) * COW_RECORDS;
		uint64_t got;
		int ret;

		if (!(leaf->state[i] & BLOCK_STALE))
			continue;
		pthread_mutex_lock(w->lock);
		leaf->e[i].blk = cow_space_take(w->space, 1, &got);
		for (unsigned r = 0; r < COW_RECORDS && got; r++)
			if (rec[r].tree.top.blk)
				cow_space_ref(w->space, rec[r].tree.top.blk);
		pthread_mutex_unlock(w->lock);
		if (!got)
			return -ENOSPC;
		leaf->e[i].sum = cow_sum(rec, COW_BLOCK);
		ret = w->io->write(w->io->priv, leaf->e[i].blk, rec);
		if (ret)
			return ret;
	}
	return 0;
}

int cow_catalog_write(struct catalog *c, const struct tree_io *io, struct space *s, pthread_mutex_t *lock, struct cow_ref *ref)
{
	struct writing w = { .catalog = c, .io = io, .space = s, .lock = lock };
	int ret = cow_tree_each_dirty(&c->tree, write_records, &w);

	if (ret)
		return ret;
	ref->size = (uint64_t)c->nr * sizeof(*c->rec);
	ref->zero = 0;
	return cow_tree_write(&c->tree, io, s, lock, ref);
}
