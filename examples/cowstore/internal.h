/*
 * internal.h - what the store's files share: the format on the device, trees, space, objects
 */
#ifndef COWSTORE_INTERNAL_H
#define COWSTORE_INTERNAL_H

#include <pthread.h>
#include "cowstore.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the format is little-endian and is read and written as it is in memory"
#endif

/* --- on the device ---------------------------------------------------------------------------------------- */

enum {
	COW_BLOCK = 4096,
	COW_SHIFT = 12,
	COW_FANOUT = 256,               /* pointers in a node */
	COW_RECORDS = 16,               /* records in a block */
	COW_ROOTS = 2,                  /* blocks 0 … are root slots */
	COW_LEVELS = 5,                 /* most that a tree can have */
	COW_SLACK = 32,                 /* blocks that only removing may use, so that a full store can be emptied */
};

#define COW_MAGIC       "COWSTOR1"

struct cow_ptr {
	uint64_t blk;                   /* 0: a hole */
	uint64_t sum;                   /* of what is there; of the last block of an object up to the object's end */
};

/* A tree. levels 0: top is the only block of contents; n: a node, with 256^n blocks of contents below. */
struct cow_ref {
	struct cow_ptr top;
	uint64_t size;                  /* bytes of contents */
	uint32_t levels;
	uint32_t zero;
};

struct cow_record {
	struct cow_ref tree;            /* an object's contents; or the records of a snapshot's objects */
	uint64_t generation;
	int64_t time;
	char name[COW_NAME_MAX + 8];    /* "": the record is free */
};

/* One sector, so a power cut leaves the old or the new one whole. */
struct cow_root {
	char magic[8];
	uint32_t block;                 /* COW_BLOCK */
	uint32_t zero;
	uint64_t blocks;
	uint64_t generation;
	struct cow_ref objects, snapshots;
	char pad[512 - 8 - 8 - 16 - 64 - 8];
	uint64_t sum;                   /* of all before it */
};

_Static_assert(sizeof(struct cow_ptr) * COW_FANOUT == COW_BLOCK, "a node fills a block");
_Static_assert(sizeof(struct cow_record) * COW_RECORDS == COW_BLOCK, "records fill a block");
_Static_assert(sizeof(struct cow_root) == 512, "a root fills a sector");

uint64_t cow_sum(const void *data, size_t len);

/* --- space.c: which blocks are in use --------------------------------------------------------------------- */

/* As long as the store; under store->lock. */
struct space {
	uint64_t blocks;
	uint64_t nr_free;               /* clear bits of used */
	uint64_t reserved;              /* of them promised: to dirty blocks and to the nodes above them */
	uint64_t cursor;                /* where the next search begins */
	uint64_t *used;                 /* a bit a block */
	uint32_t *refs;                 /* pointers to each block, on the device or in nodes written for the next root */
};

int cow_space_init(struct space *s, uint64_t blocks);
void cow_space_fini(struct space *s);
bool cow_space_reserve(struct space *s, uint64_t n, uint64_t slack);
void cow_space_unreserve(struct space *s, uint64_t n);
/* First of up to @want free blocks side by side, which are in use then; their number in @got. 0: nothing is free. */
uint64_t cow_space_take(struct space *s, uint64_t want, uint64_t *got);
void cow_space_give(struct space *s, uint64_t blk);         /* back what nothing points to */
uint32_t cow_space_ref(struct space *s, uint64_t blk);      /* one more pointer; how many there were */
uint32_t cow_space_unref(struct space *s, uint64_t blk);    /* one less; how many there are. With the last it is free */

/* --- tree.c: pointers to the blocks of one object, or of a list of records -------------------------------- */

/* state of one block of contents; under store->lock */
enum {
	BLOCK_RESERVED = 1,             /* dirty in the cache, one free block promised */
	BLOCK_PLACED = 2,               /* its place is decided, its bytes are on the way there or will be sent again */
	BLOCK_OWNED = 4,                /* e.blk was written since the last commit: no root leads there, it may be overwritten */
	BLOCK_STALE = 8,                /* e.sum is not that of its contents */
};

struct node {
	uint8_t level;                  /* 1: its pointers lead to contents */
	bool dirty;                     /* not what the last root leads to */
	struct cow_ptr e[COW_FANOUT];   /* where things are; of a dirty child not yet */
	uint8_t state[COW_FANOUT];      /* level 1: BLOCK_* */
	union {
		struct node *child[COW_FANOUT];         /* level > 1; NULL: a hole */
		uint64_t place[COW_FANOUT];             /* level 1, PLACED: where it will be */
	};
};

struct tree {
	struct node *top;               /* never NULL */
	struct cow_ptr ptr;             /* to top, or with no more than one block of contents to that, in the last root */
};

/* How metadata is read and written. */
struct tree_io {
	int (*read)(void *priv, const struct cow_ptr *ptr, void *block);        /* and checks the sum */
	int (*write)(void *priv, uint64_t blk, const void *block);
	void *priv;
};

int cow_tree_init(struct tree *t);
int cow_tree_load(struct tree *t, const struct tree_io *io, const struct cow_ref *ref);
void cow_tree_fini(struct tree *t);
/* The leaf with block @idx; NULL: a hole. */
struct node *cow_tree_find(const struct tree *t, uint64_t idx);
/* The same, made where it is missing; NULL: no memory. */
struct node *cow_tree_make(struct tree *t, uint64_t idx);
/* How many nodes become dirty by cow_tree_make() and cow_tree_dirty() of block @idx. */
unsigned cow_tree_cost(const struct tree *t, uint64_t idx);
void cow_tree_dirty(struct tree *t, uint64_t idx);
uint64_t cow_tree_count_dirty(const struct tree *t);
/* Blocks from @first on become holes: each is given to @drop first. Nodes on the edge become dirty. */
void cow_tree_cut(struct tree *t, uint64_t first, void (*drop)(void *priv, struct node *leaf, unsigned i), void *priv);
unsigned cow_tree_cut_cost(const struct tree *t, uint64_t first);           /* at most so many nodes become dirty */
/* Calls @visit for each leaf that is dirty, with the first block below it. Stops at an error and returns it. */
int cow_tree_each_dirty(struct tree *t, int (*visit)(void *priv, struct node *leaf, uint64_t first), void *priv);
/* Dirty nodes go to new blocks, and each of their pointers counts as one more. *@ref gets top and levels. */
int cow_tree_write(struct tree *t, const struct tree_io *io, struct space *s, pthread_mutex_t *lock, struct cow_ref *ref);
/* The root that leads to *@ref is durable: nothing is dirty, nothing owned. */
void cow_tree_settle(struct tree *t, const struct cow_ref *ref);

/* --- catalog.c: a list of records with names -------------------------------------------------------------- */

struct catalog {
	struct tree tree;               /* STALE: this block of records must be written */
	struct cow_record *rec;
	uint32_t nr, used;              /* records there is room for, a multiple of COW_RECORDS; with a name */
	uint32_t *head, *next;          /* chains by hash of the name; of free records: next is their list */
	uint32_t nr_heads, free;
};

#define COW_NONE        UINT32_MAX

int cow_catalog_load(struct catalog *c, const struct tree_io *io, const struct cow_ref *ref);
void cow_catalog_fini(struct catalog *c);
uint32_t cow_catalog_find(const struct catalog *c, const char *name);       /* index or COW_NONE */
/* Room for one more record and memory to change it, so that cow_catalog_add() and _touch() cannot fail. */
int cow_catalog_prepare(struct catalog *c);
uint32_t cow_catalog_add(struct catalog *c, const char *name);
void cow_catalog_remove(struct catalog *c, uint32_t index);
unsigned cow_catalog_cost(const struct catalog *c, uint32_t index);         /* blocks to write when it has changed */
void cow_catalog_touch(struct catalog *c, uint32_t index);
uint64_t cow_catalog_count_dirty(struct catalog *c);
int cow_catalog_write(struct catalog *c, const struct tree_io *io, struct space *s, pthread_mutex_t *lock, struct cow_ref *ref);

/* --- object.c, store.c ------------------------------------------------------------------------------------ */

/* An object in use: from its first open until it is closed and clean, and the cache knows nothing of it any more. */
struct cow_object {
	struct cow_store *store;
	struct iomap_file *file;
	uint32_t record;                /* in store->objects; COW_NONE: of a snapshot, or removed */
	/* under store->api, for changes exclusively */
	struct cow_object *next;        /* in store->open, or in store->closed */
	uint32_t snapshot;              /* of which snapshot, or COW_NONE */
	unsigned handles;
	/* under store->lock */
	struct tree tree;
	bool dirty;                     /* differs from its record */
	uint64_t seq;                   /* moves with each change of the mapping that no write made: iomap_valid() */
};

struct cow_store {
	/* fixed */
	struct cow_params params;
	struct iomap_device *device;
	struct iomap_cache *cache;
	struct iomap_file *meta;        /* the device as it is: metadata goes through the cache, too */
	struct tree_io io;

	/*
	 * api: shared by reads, exclusive for all else; held over I/O, taken first. lock: short, also taken in callbacks; nothing of
	 * libiomap is called under it.
	 */
	pthread_rwlock_t api;
	pthread_mutex_t lock;

	/* under api */
	struct cow_root root;           /* the durable one */
	struct catalog snapshots;
	struct cow_object *open, *closed;
	unsigned nr_closed;
	uint64_t files;                 /* names for the cache, never used twice */
	int broken;                     /* a commit failed half way: nothing is changed any more */
	bool changed;                   /* there is something to commit */

	/* under lock */
	struct space space;
	struct catalog objects;
};

int cow_object_create(struct cow_store *store, const struct cow_ref *ref, uint32_t record, struct cow_object **out);
void cow_object_close_file(struct cow_object *object);      /* the cache lets go of it at its next sync */
void cow_object_free(struct cow_object *object);
int cow_object_sync(struct cow_object *object);             /* its bytes are on the device, its pointers and sums are right */

__attribute__((format(printf, 2, 3))) void cow_tell(struct cow_store *store, const char *format, ...);

#endif
