/*
 * cache.h - what all files of one cache share (the public face is <iomap/cache.h>)
 *
 * Everything hangs off this struct: two caches in one process never meet.
 */
#ifndef IOMAP_CACHE_PRIVATE_H
#define IOMAP_CACHE_PRIVATE_H

#include <iomap/cache.h>
#include "bdi.h"
#include "copy-pool.h"
#include "ghost.h"
#include "list.h"
#include "mapping.h"
#include "throttle-math.h"

#ifdef IOMAP_SIM
#define INODE_HASH 4            /* few, so that files share a bucket */
#else
#define INODE_HASH 1024
#endif
#define FILES_KEPT 64                           /* closed handles; checked builds only */

/* Counts of events, one set a thread so that a hit writes no shared memory; summed when asked. */
enum task_stat { TASK_HITS, TASK_MISSES, TASK_DIRTIED_BYTES, TASK_THROTTLED_NS, TASK_PAUSES, TASK_STATS };

/*
 * One thread in one cache: from its first call to its exit. Written by its thread alone; statistics are read by
 * others.
 */
struct task {
	struct list all;                        /* cache->tasks; its lock */
	struct throttle_task throttle;
	uint64_t odd_bytes;                     /* dirtied, less than a unit */
	const struct iomap_folio *last;         /* what it read last: using that again tells reclaim nothing */
	bool internal;                          /* the library's own: cleans, so it is never throttled */
	unsigned in_device;                     /* in a device's callback on behalf of writeback: the same holds for whoever it is */
	_Atomic uint64_t stat[TASK_STATS];
};

/* Reclaim's queues; reclaim.c. */
struct folio_queue { uint32_t head, tail; uint64_t bytes; };    /* new at the head, eviction at the tail */
struct reclaim {
	struct mutex lock;                      /* LOCK_RECLAIM */
	struct folio_queue behind, small, main;
	_Atomic uint64_t evicted_bytes, refaults, wasted_bytes;
	struct mutex thread_lock;               /* LOCK_LEAF: the background thread sleeps with it */
	struct cond thread_cond;
	struct list short_ioends;               /* writes that came back short: the thread gives them out again */
	bool wanted, stop, has_thread;
	bool behind_wanted;                     /* something is on the behind queue */
	uint64_t behind_delay_ns;               /* until those that were busy are tried again */
	struct thread thread;
	uint64_t low_bytes, high_bytes;         /* free memory: start below low, stop at high */
};

/* Completed requests on their way to an engine's end_io(); endio.c. */
struct endio {
	struct mutex lock;                      /* LOCK_LEAF */
	struct cond cond;
	struct list queue;
	bool stop;
	struct mutex start_lock;                /* LOCK_FLUSH */
	bool has_thread;
	struct thread thread;
};

/* The dirty limit that all backing devices share; throttle.c. */
struct throttle_domain {
	struct mutex lock;                      /* LOCK_LEAF */
	uint64_t tracked_limit;                 /* units; follows a lowered limit slowly */
	uint64_t tracked_stamp_ms;
	struct fprop_domain completions;
};

struct iomap_cache {
	/* fixed */
	struct zone zone;
	const volatile uint32_t *alive;         /* reads 0 in a forked child */
	enum iomap_accounting accounting;
	enum iomap_error_policy error_policy;
	unsigned queue_depth, writeback_threads;
	void (*log)(void *priv, int level, const char *message);
	void *log_priv;
	/* tunables */
	_Atomic uint64_t dirty_bytes, dirty_background_bytes;
	_Atomic unsigned dontcache;             /* enum iomap_dontcache */
	_Atomic unsigned dirty_expire_ms, dirty_writeback_ms, readahead_bytes, max_order;
	/* inode_lock: open inodes, backing devices */
	struct mutex inode_lock;                /* LOCK_CACHE */
	struct cond inode_cond;                 /* an inode left I_NEW or I_FREEING */
	struct list inodes[INODE_HASH];
	struct list late_inodes;                /* inode_put_late() takes them apart */
	struct list wbs;
	uint64_t nr_handles, next_file_id;
#ifdef IOMAP_DEBUG
	struct iomap_file *closed[FILES_KEPT];  /* a ring */
	unsigned next_closed;
#endif
	_Atomic bool abandoned;                 /* iomap_cache_abandon(): handles only answer -EBADF */
	/* tasks */
	struct tls_key task_key;
	struct mutex task_lock;                 /* LOCK_LEAF */
	struct list tasks;
	uint64_t gone[TASK_STATS];              /* of threads that have exited */
	_Atomic uint64_t leaked_units;          /* dirtied by them and not paid for */
	/* accounting */
	struct wb_peaks peaks;
	struct wb_sums sums;
	_Atomic uint64_t readahead_bytes_read;
	struct throttle_domain throttle;
	struct reclaim reclaim;
	struct endio endio;
	struct ghost ghost;
	struct copy_pool copies;
	/* helpers of all flushers; flusher.c */
	struct mutex helper_lock;               /* LOCK_WB_LIST */
	struct cond helper_cond;
	struct thread *helpers;
	unsigned nr_helpers;
	struct wb *assist;                      /* has a batch to share, or NULL */
	bool helper_stop;
	_Atomic unsigned nr_threads;            /* of the library's own: those between cache_thread_begin() and _end() */
};

/* The backing device for files on st_dev @dev, or for an engine's @device; made if need be. 0 or -errno. */
int  cache_wb_for(struct iomap_cache *cache, dev_t dev, struct iomap_device *device, struct wb **out);
/* Engines' devices that no inode uses any more lose their backing device and its thread. */
void cache_reap_wbs(struct iomap_cache *cache);
/* A handle is gone; the last one of an abandoned cache takes the rest with it. */
void cache_handle_closed(struct iomap_cache *cache);
/* task.c */
void tasks_init(struct iomap_cache *cache);
void tasks_fini(struct iomap_cache *cache);
/* This thread in this cache; NULL: no memory for it. */
struct task *cache_task(struct iomap_cache *cache);
static inline void task_count(struct task *t, enum task_stat s, uint64_t n)
{
	store_relaxed(&t->stat[s], load_relaxed(&t->stat[s]) + n);      /* its own thread is the only writer */
}
/* What a thread did that there was no memory to know. */
void cache_count_orphan(struct iomap_cache *cache, enum task_stat s, uint64_t n);
/* First and last thing a thread of the library's own does. */
void cache_thread_begin(struct iomap_cache *cache);
void cache_thread_end(struct iomap_cache *cache);
/* Around what writeback asks of a device, which may use other files of this cache for it. */
struct device_call { struct task *task; unsigned locks; };
struct device_call cache_device_begin(struct iomap_cache *cache);
void cache_device_end(struct device_call call);
/* It must neither be slowed down nor wait until somebody cleans. */
static inline bool task_is_cleaning(const struct task *t) { return t && (t->internal || t->in_device); }
uint64_t cache_task_sum(struct iomap_cache *cache, enum task_stat s);
/* printf to the log hook; no short lock held. */
__attribute__((format(printf, 3, 4))) void cache_log(struct iomap_cache *cache, int level, const char *fmt, ...);
static inline bool cache_is_usable(const struct iomap_cache *cache)
{
	return *cache->alive && !load_relaxed(&cache->abandoned);
}

#endif
