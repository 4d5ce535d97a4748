/*
 * cowstore.h - many named objects in one file, never overwritten in place
 *
 * What an engine looks like that brings its own mapping to libiomap: the cache holds the bytes of each object, the store says
 * where they are on the device. Read this page, then object.c (the callbacks), store.c (commit), tree.c, space.c.
 *
 * On the device there are blocks of 4096 bytes. Whatever leads to a block is a pointer of 16 bytes: the number of the block
 * and a checksum of its contents. A block of 256 such pointers is a node, so an object is a tree of nodes with its contents
 * below; a missing pointer is a hole. The list of objects is contents of such a tree, too, and so is the list of snapshots:
 *
 *      block 0, 1: two root slots           generation, pointer to objects, pointer to snapshots, checksum
 *                     |
 *            objects: nodes                  snapshots: nodes
 *                     |                             |
 *                records of 256 bytes:         records: name, pointer to the objects as they were
 *                name, size, pointer
 *                     |
 *                   nodes -> blocks of the object
 *
 * Nothing that a root leads to is ever changed. A changed block is written to a free one; then its pointer has changed, so the
 * node gets a new place, and so on up to the root. That is the whole of crash safety:
 *
 *      commit:  1. the objects' dirty blocks, to new places (the cache may have written many of them long before)
 *               2. nodes and records, to new places; flush the device
 *               3. one block: the root, into the slot that holds the older one; flush
 *
 * Before 3 is done a crash shows the old root and all that it leads to, afterwards the new one. A snapshot is one more
 * pointer to the objects, so it costs a record.
 *
 * The number of pointers to each block is kept in memory and counted anew when a store is opened; there is no list of free
 * blocks on the device that could be wrong. Blocks of the old root are let go when the new one is durable: its pointers are
 * dropped, and what nothing points to any more is free.
 *
 * Allocation is delayed: a write into the cache only sets a block aside, so that lack of space is known at once; which one is
 * decided when the cache writes it out, many at a time and side by side.
 *
 * Memory: an open object keeps its nodes in memory, 25 bytes for each 4096 of it; its contents are in the cache, which may be
 * much smaller. Calls may come from several threads: reads run in parallel, all else one at a time.
 */
#ifndef COWSTORE_H
#define COWSTORE_H

#include <iomap/iomap.h>

#define COW_NAME_MAX    200                     /* bytes; no control characters, no '@' */
#define COW_SIZE_MAX    (1ULL << 44)            /* of an object */

struct cow_store;
struct cow_object;

/* Bugs that a test may plant, to see that it would notice. */
enum cow_bug {
	COW_BUG_NONE = 0,
	COW_BUG_NO_FLUSH,               /* the root is written with no flush before it */
	COW_BUG_LAZY_ROOT,              /* commit returns, and old blocks are reused, before the root is durable */
	COW_BUG_IN_PLACE,               /* live blocks are overwritten */
};

struct cow_params {
	uint64_t cache_bytes;           /* 0: 64 MiB */
	bool format;                    /* make an empty store on the device first */
	bool readonly;
	enum cow_bug bug;
	void (*tell)(void *tell_priv, const char *message);     /* what is wrong, in words; may be NULL; from any thread */
	void *tell_priv;
};

struct cow_info {                       /* an object or a snapshot */
	char name[COW_NAME_MAX + 1];
	uint64_t size;                  /* bytes; of a snapshot: 0 */
	uint64_t generation;            /* the commit that wrote it */
	int64_t time;                   /* of that commit, seconds since 1970 */
};

struct cow_stat {
	uint64_t blocks, free_blocks;   /* 4096 bytes each */
	uint64_t generation;            /* commits so far */
	uint64_t objects, snapshots;
	uint64_t metadata_blocks;       /* nodes, records and roots, in use */
};

/*
 * All return 0 or a count, or a negative errno: what libiomap says, and -EBADMSG (contents do not match their checksum),
 * -EUCLEAN (metadata does not), -EROFS (read-only, or a commit has failed: open the store anew), -ENOSPC, -ENOENT, -EEXIST,
 * -EBUSY (somebody has it open), -EINVAL (not a store; a name that cannot be one), -EFBIG.
 */
int cow_open(struct iomap_device *device, const struct cow_params *params, struct cow_store **out);
void cow_close(struct cow_store *store);                /* what was not committed is gone */

/* @snapshot NULL: the object of today, else as it was (and cannot be written). */
int cow_object_open(struct cow_store *store, const char *name, const char *snapshot, bool create, struct cow_object **out);
void cow_object_close(struct cow_object *object);
ssize_t cow_read(struct cow_object *object, void *buf, size_t len, uint64_t pos);       /* checks the checksums */
ssize_t cow_write(struct cow_object *object, const void *buf, size_t len, uint64_t pos);
int cow_truncate(struct cow_object *object, uint64_t size);
uint64_t cow_size(struct cow_object *object);

int cow_remove(struct cow_store *store, const char *name);
int cow_snapshot(struct cow_store *store, const char *name);            /* of what the next commit commits */
int cow_snapshot_remove(struct cow_store *store, const char *name);
int cow_commit(struct cow_store *store);                                /* all that has changed, or nothing of it */

/* Objects (as in @snapshot, or of today) or, with @snapshots, the snapshots. The array is the caller's to free. */
ssize_t cow_list(struct cow_store *store, const char *snapshot, bool snapshots, struct cow_info **out);

/*
 * Reads every object of every snapshot, compares checksums, counts pointers anew and sees that no block has two uses. Each
 * problem is told by params.tell.
 *
 * Nothing may change meanwhile.
 *
 * Return: the number of problems; -EBUSY where something is not committed.
 */
int cow_verify(struct cow_store *store);
int cow_stat(struct cow_store *store, struct cow_stat *out);

#endif
