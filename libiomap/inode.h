/*
 * inode.h - what all opens of one file share: size, mapping, error history
 *
 * State        what is true                                           who moves it on (under cache->inode_lock, wb->list_lock)
 * I_NEW        in the table, its opener still at work                  iomap_open(); others wait
 * (none)       in use, or lingering until clean                        last close, flusher
 * I_FREEING    its last user is taking it apart                        inode_put(); openers wait until it is gone
 *
 * I_DIRTY      on a list of its backing device, which holds a reference   flusher_mark_dirty(), flusher
 * I_SYNC       a flusher or helper is writing it                       flusher
 */
#ifndef IOMAP_INODE_H
#define IOMAP_INODE_H

#include <iomap/ops.h>
#include "cache.h"
#include "errseq.h"
#include "rangeset.h"

enum { I_NEW = 1U << 0, I_FREEING = 1U << 1, I_DIRTY = 1U << 2, I_SYNC = 1U << 3 };

/* @mapped is not compared: a device's files are all an engine's, or it has only one. */
struct inode_key { dev_t dev; ino_t ino; struct iomap_device *device; const char *name; bool mapped; };

struct inode {
	/* fixed */
	struct iomap_cache *cache;
	struct wb *wb;
	struct iomap_device *device;
	struct inode_key key;                   /* name is ours */
	char *path;                             /* as first opened; NULL for an engine's device without names */
	bool fixed_size;
	bool mapped;                            /* by an engine; else ops are plain_ops, and ops_priv is this inode */
	const struct iomap_ops *ops;
	const struct iomap_writeback_ops *wb_ops;       /* where an engine maps and the file may be written */
	void *ops_priv;
	bool unstable;                          /* IOMAP_OPEN_UNSTABLE: contents may change while they are written */
	/* cache->inode_lock */
	struct list hash;
	struct list late;                       /* in cache->late_inodes, which has the last reference */
	_Atomic unsigned flags;                 /* I_*; I_DIRTY and I_SYNC: wb->list_lock */
	unsigned refs;                          /* handles + 1 while I_DIRTY + whoever works on it */
	_Atomic unsigned handles;
	_Atomic bool writable;                  /* the device has a read-write descriptor */
	_Atomic bool reserves;                  /* fallocate works there */
	bool created;                           /* its name is not durable yet; flush_lock */
	/* rwsem: shared for writes inside the size, exclusive for what changes size or mapping */
	struct rwsem rwsem;                     /* LOCK_INODE */
	struct mutex append_lock;               /* LOCK_APPEND */
	_Atomic uint64_t size;                  /* i_size: raised after the data is in the cache */
	struct mapping mapping;
	/* writeback */
	struct mutex extend_lock;               /* LOCK_EXTEND: who may write beyond the device's size; held over that I/O */
	_Atomic pgoff_t writeback_index;        /* where the next cyclic pass goes on */
	_Atomic unsigned nr_inflight;           /* write requests, from claim to completion */
	/* wb->list_lock */
	struct list wb_node;
	uint64_t dirtied_when_ns;
	uint64_t retry_at_ns, retry_delay_ns;   /* failed blocks: next try in the background */
	uint64_t start_pos, start_end;          /* the flusher is to start writing this range; start_end 0: none */
	/* flush: "a flush counts only for callers whose writes had completed before it started" */
	struct mutex flush_lock;                /* LOCK_FLUSH */
	_Atomic uint64_t flushes_started;
	uint64_t last_good_flush;               /* number of the last one that ended well; flush_lock */
	_Atomic int flush_error;                /* of the last one that failed; sticky until resolved */
	_Atomic uint64_t flush_failures;        /* flushes that failed */
	_Atomic bool flush_running;             /* what it covers is neither unflushed nor durable yet */
	_Atomic bool size_unflushed;            /* the device's size or its holes have changed since the last good flush began */
	struct rangeset unflushed;              /* written since the last good flush began */
	struct rangeset flushing;               /* covered by the flush under way */
	struct rangeset lost;                   /* what a failed flush may have lost */
	/* errors of writes */
	errseq_t wb_err;
	_Atomic uint64_t write_failures;        /* requests that failed; raised before their blocks say so */
	_Atomic unsigned write_failing;         /* of them, those whose blocks do not all say so yet */
	_Atomic uint32_t sync_since;            /* iomap_cache_sync()'s cursor */
	/* space: what is known to be allocated on the device */
	struct rangeset allocated;
	_Atomic uint64_t reserve_ahead;         /* next append reserves so much */
	_Atomic uint64_t reserved_end;          /* KEEP_SIZE space up to here, trimmed at the last close */
	_Atomic uint64_t kept_end;              /* KEEP_SIZE space that the program asked for, not to be trimmed */
	/* direct reads under way */
	struct mutex direct_lock;               /* LOCK_LEAF */
	struct list direct_reads;
	/* times */
	struct mutex time_lock;                 /* LOCK_LEAF */
	struct timespec mtime;                  /* of the last write through this cache; 0: the device's */
	_Atomic uint64_t misses, readahead_bytes;
};

/*
 * Finds or makes the inode for @key. A new one (*@is_new) is I_NEW and the caller's to finish by inode_ready() or
 * inode_fail(). One reference and one handle are the caller's. -ENOMEM.
 */
int  inode_lookup(struct iomap_cache *cache, const struct inode_key *key, struct inode **out, bool *is_new);
/* The inode for @key if this cache has it, referenced; waits for one that comes or goes. */
struct inode *inode_find(struct iomap_cache *cache, const struct inode_key *key);
void inode_ready(struct inode *inode);
void inode_fail(struct inode *inode);

/* The last reference takes the inode apart: folios dropped, device closed. Sleeps. */
void inode_put(struct inode *inode);
/*
 * Next inode of the cache after @prev (whose reference is dropped; NULL: the first), referenced; skips those
 * coming and going.
 */
struct inode *inode_next(struct iomap_cache *cache, struct inode *prev);
/*
 * The same where locks are held under which no inode may be taken apart: a last reference is kept for inode_put_late(), which is
 * called when they have been let go.
 */
struct inode *inode_next_late(struct iomap_cache *cache, struct inode *prev);
void inode_put_late(struct iomap_cache *cache);

/*
 * Blocks that failed go from in flight back to dirty, against the order in which the two are looked for, so one may be missed in both. A look
 * at the blocks of a file is proof of nothing unless inode_no_failure_since() the value of this from before it.
 */
uint64_t inode_failures(const struct inode *inode);
bool inode_no_failure_since(const struct inode *inode, uint64_t failures);

static inline uint64_t inode_size(const struct inode *inode) { return load_acquire(&inode->size); }
/* pairs with inode_size(): who sees the size sees the data below it */
static inline void inode_set_size(struct inode *inode, uint64_t size) { store_release(&inode->size, size); }
/* The file ends where its device ends: its size moves by writing there, in order, and by setting the device's. */
static inline bool inode_ends_device(const struct inode *inode) { return !inode->fixed_size && !inode->mapped; }
/* No dirty block, nothing in flight, the device's size right. */
bool inode_is_clean(struct inode *inode);
/* Clean, and a flush has covered all of it. */
bool inode_is_durable(struct inode *inode);
int  inode_flush_error(struct inode *inode);             /* of flushes that failed and are not resolved, or 0 */
/* Sets the device's size: durable by the next flush. */
int  inode_set_device_size(struct inode *inode, uint64_t size);
/* After an extending write that failed the file may be longer than the device knows: cut to what it knows. extend_lock held. */
int  inode_settle_device_size(struct inode *inode);
/*
 * The device has written [start, end), and no flush has covered it yet. @flush_failures: the inode's when the request was made: a flush
 * that failed since may have been after the device had these bytes, so they are lost with the rest.
 */
void inode_note_written(struct inode *inode, uint64_t start, uint64_t end, uint64_t flush_failures);

/*
 * A read around the cache, from begin to end. What writeback puts in flight meanwhile disturbs it: the device may give half of a
 * block write. What was in flight before is the reader's to look for, after begin.
 */
struct direct_read { struct list node; uint64_t start, end; bool disturbed; };
void inode_read_begin(struct inode *inode, struct direct_read *r, uint64_t start, uint64_t end);
bool inode_read_end(struct inode *inode, struct direct_read *r);        /* true: undisturbed */
/* [start, end) is marked as in flight, and not with the device yet. */
void inode_disturb_reads(struct inode *inode, uint64_t start, uint64_t end);
void inode_touch(struct inode *inode);          /* mtime = now */

#endif
