/*
 * list.h - circular doubly linked lists whose links live in the listed object
 */
#ifndef IOMAP_LIST_H
#define IOMAP_LIST_H

#include <stdbool.h>
#include "util.h"

struct list { struct list *next, *prev; };

static inline void list_init(struct list *l) { l->next = l->prev = l; }
static inline bool list_empty(const struct list *l) { return l->next == l; }

static inline void list_insert_between(struct list *node, struct list *prev, struct list *next)
{
	node->prev = prev;
	node->next = next;
	prev->next = node;
	next->prev = node;
}

static inline void list_add_head(struct list *l, struct list *node) { list_insert_between(node, l, l->next); }
static inline void list_add_tail(struct list *l, struct list *node) { list_insert_between(node, l->prev, l); }

/* Leaves @node empty, so that it may be removed again and tested with list_empty(). */
static inline void list_del(struct list *node)
{
	node->prev->next = node->next;
	node->next->prev = node->prev;
	list_init(node);
}

static inline void list_move_head(struct list *l, struct list *node) { list_del(node); list_add_head(l, node); }
static inline void list_move_tail(struct list *l, struct list *node) { list_del(node); list_add_tail(l, node); }

/* Moves all of @from to the tail of @to and leaves @from empty. */
static inline void list_splice_tail(struct list *to, struct list *from)
{
	if (list_empty(from))
		return;
	from->next->prev = to->prev;
	to->prev->next = from->next;
	from->prev->next = to;
	to->prev = from->prev;
	list_init(from);
}

#define list_entry(node, type, member)  container_of(node, type, member)
#define list_first(l, type, member)     list_entry((l)->next, type, member)
#define list_last(l, type, member)      list_entry((l)->prev, type, member)
#define list_for_each(it, l)            for (struct list *it = (l)->next; it != (l); it = it->next)
#define list_for_each_safe(it, l) \
	for (struct list *it = (l)->next, *it##_next = it->next; it != (l); it = it##_next, it##_next = it->next)

#endif
