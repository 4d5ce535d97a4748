/*
 * xarray.h - a 64-way radix tree from page index to pointer, with three marks
 *
 * Readers (xa_load, xa_find, xa_find_marked, xa_get_mark, xa_marked) run under rcu_enter() or the owner's lock; everything that
 * changes the tree runs under the owner's lock. A large object fills every slot it covers; its marks stand at its first slot.
 * Nodes are freed after a grace period. The tree allocates nothing under the lock: xa_store() says how many nodes it
 * lacks, the caller drops the lock, fills the pool and tries again.
 */
#ifndef IOMAP_XARRAY_H
#define IOMAP_XARRAY_H

#include <stddef.h>
#include "atomic.h"
#include "mem.h"
#include "util.h"

#ifndef XA_SHIFT
#define XA_SHIFT 6              /* 64 slots a node; tests build it with 3 */
#endif

enum xa_mark { XA_MARK_DIRTY, XA_MARK_WRITEBACK, XA_MARK_TOWRITE, XA_MARKS };

struct xa_node;
struct xarray { struct mem *mem; _Atomic(struct xa_node *) root; };
struct xa_pool { struct xa_node *free; unsigned nr, need; };     /* start zeroed; belongs to one thread */

void  xa_init(struct xarray *xa, struct mem *mem);
void  xa_fini(struct xarray *xa);               /* frees every node at once: no readers any more. Entries are the caller's */
bool  xa_empty(const struct xarray *xa);

void *xa_load(const struct xarray *xa, uint64_t index);                 /* NULL if empty */
/* First entry at or after *@index and <= @last; *@index becomes its slot. NULL: none, *@index undefined. */
void *xa_find(const struct xarray *xa, uint64_t *index, uint64_t last);
void *xa_find_marked(const struct xarray *xa, uint64_t *index, uint64_t last, enum xa_mark mark);
bool  xa_marked(const struct xarray *xa, enum xa_mark mark);            /* is any slot so marked? */
bool  xa_get_mark(const struct xarray *xa, uint64_t index, enum xa_mark mark);

/*
 * Fills the empty slots [index, index + nr) with @entry. 0; -EEXIST if one is taken; -EAGAIN with pool->need nodes missing.
 * On an error nothing has changed.
 */
int   xa_store(struct xarray *xa, uint64_t index, uint64_t nr, void *entry, struct xa_pool *pool);
int   xa_pool_fill(struct xarray *xa, struct xa_pool *pool);            /* up to pool->need; no lock held; -ENOMEM */
void  xa_pool_fini(struct xarray *xa, struct xa_pool *pool);
/* Every slot of the range holds an entry and gets another; marks stay as they are. For splitting. */
void  xa_replace(struct xarray *xa, uint64_t index, uint64_t nr, void *entry);
void  xa_erase(struct xarray *xa, uint64_t index, uint64_t nr);         /* slots and their marks; empty nodes go */
void  xa_set_mark(struct xarray *xa, uint64_t index, enum xa_mark mark);        /* the slot is not empty */
void  xa_clear_mark(struct xarray *xa, uint64_t index, enum xa_mark mark);
/*
 * Sets @to on up to @max slots in [*first, last] that carry @from; returns how many. *first becomes where to go on: @last + 1
 * when all is done (0 after 2^64 - 1).
 */
uint64_t xa_copy_mark(struct xarray *xa, uint64_t *first, uint64_t last, enum xa_mark from, enum xa_mark to, uint64_t max);

/*
 * Recomputes what the tree claims (counts, marks of inner nodes, heights): 0, or -EUCLEAN and the first thing
 * broken in words.
 */
int   xa_check(const struct xarray *xa, char *why, size_t why_len);
uint64_t xa_nodes(const struct xarray *xa);     /* for tests: how many nodes there are */

#endif
