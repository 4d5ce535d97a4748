/*
 * stat.h - what is going on, in numbers
 *
 * All values are uint64_t in bytes, events, nanoseconds or bytes per second. Names follow /proc/vmstat and the kernel's
 * bdi statistics. Totals count from the creation of their object and only grow.
 */
#ifndef IOMAP_PUBLIC_STAT_H
#define IOMAP_PUBLIC_STAT_H

#include <stdio.h>
#include <iomap/base.h>

#ifdef __cplusplus
extern "C" {
#endif

#define IOMAP_STAT_ORDERS 10            /* folios of 4 KiB << 0 … 4 KiB << 9 */

struct iomap_cache_stat {
	/* levels: what is so now */
	uint64_t dirty_bytes;                   /* charged for dirty blocks, failed ones included */
	uint64_t writeback_bytes;               /* charged for blocks in flight */
	uint64_t pinned_bytes;                  /* memory of folios with a dirty or in-flight block */
	uint64_t failed_bytes;                  /* of dirty_bytes: blocks whose last write failed */
	uint64_t dontcache_dirty_bytes;         /* of dirty_bytes: in folios that DONTCACHE operations made */
	uint64_t cached_bytes;                  /* memory of all folios */
	uint64_t free_bytes;                    /* folio memory not in use */
	uint64_t metadata_bytes;                /* memory beside the folios: tree nodes, bitmaps, requests, copies in flight */
	uint64_t dirty_peak_bytes;              /* highest dirty_bytes + writeback_bytes so far */
	uint64_t pinned_peak_bytes;             /* highest pinned_bytes so far */
	uint64_t max_dirty_folio_bytes;         /* largest folio that held a dirty block so far */
	uint64_t pin_hard_bytes;                /* of pinned_bytes: not even splitting would free it */
	uint64_t pin_soft_bytes;                /* of pinned_bytes: splitting would free it, without I/O */
	uint64_t ready_bytes;                   /* free, or clean and unpinned: allocated without waiting for I/O */
	uint64_t folios[IOMAP_STAT_ORDERS];     /* cached folios of 4 KiB << index */

	/* totals; at every quiet point dirtied + redirtied = written + write_failed + cancelled + dirty + writeback */
	uint64_t dirtied_bytes;                 /* charged when clean blocks turned dirty */
	uint64_t redirtied_bytes;               /* charged again: blocks whose write failed and that were kept */
	uint64_t submitted_bytes;               /* moved from dirty to in flight */
	uint64_t written_bytes;                 /* left flight well */
	uint64_t write_failed_bytes;            /* left flight with an error */
	uint64_t cancelled_bytes;               /* left dirty unwritten: truncated, discarded, unlinked */
	uint64_t pin_acquired_bytes;            /* clean folios that became pinned */
	uint64_t pin_released_bytes;            /* pinned folios that became clean */
	uint64_t pin_dropped_bytes;             /* pinned folios that went with their contents */
	uint64_t hits;                          /* reads of a folio that found what they wanted cached */
	uint64_t misses;                        /* … that had to wait for the device */
	uint64_t readahead_bytes;               /* read before it was asked for */
	uint64_t readahead_wasted_bytes;        /* … and evicted unused */
	uint64_t evicted_bytes;                 /* folio memory taken back by reclaim */
	uint64_t refaults;                      /* misses on what was evicted a short while ago */
	uint64_t splits;                        /* folios split */
	uint64_t split_failures;                /* … that could not be */
	uint64_t throttled_ns;                  /* time that writers slept to the device's pace, added over all threads */
	uint64_t throttle_pauses;               /* how often */

	/* throttle: where the control loop stands */
	uint64_t dirty_limit_bytes;             /* writers are stopped here */
	uint64_t background_limit_bytes;        /* the flusher starts here */
	uint64_t setpoint_bytes;                /* the level it steers to */
	uint64_t dirty_ratelimit;               /* bytes per second that one writer may dirty, of the busiest device */
	uint64_t write_bandwidth;               /* bytes per second that devices clean, added over all devices */
};

struct iomap_file_stat {
	/* levels */
	uint64_t size_bytes;                    /* the file's size as the cache sees it */
	uint64_t cached_bytes;
	uint64_t dirty_bytes;
	uint64_t writeback_bytes;
	uint64_t failed_bytes;
	uint64_t folios[IOMAP_STAT_ORDERS];
	/* totals, over all handles of the file */
	uint64_t misses;
	uint64_t readahead_bytes;
};

struct iomap_device_stat {
	uint64_t read_bytes;                    /* completed well */
	uint64_t written_bytes;
	uint64_t read_ios;                      /* requests completed, well or not */
	uint64_t write_ios;
	uint64_t flushes;
	uint64_t io_errors;                     /* requests that ended with an error, flushes included */
	uint64_t io_retries;                    /* requests given to the device again: short, or its queue was full */
	uint64_t io_merged;                     /* block ranges that joined the request of a neighbour */
};

enum iomap_stat_format {
	IOMAP_STAT_TEXT = 0,                    /* "name value" a line */
	IOMAP_STAT_PROMETHEUS,                  /* the text exposition format, names prefixed by iomap_ */
	IOMAP_STAT_JSON,                        /* one object on one line */
};

/**
 * iomap_cache_stat - the numbers of a cache
 * @cache: the cache
 * @st:    gets them
 * @size:  sizeof(*@st) as the caller knows it: a shorter struct gets its part, what this version lacks is set to 0
 *
 * Each value is right by itself; a sum over several holds where nothing moves. Adds up per-thread counters: not for
 * every I/O.
 *
 * Context: any thread; not from a callback.
 * Return:  0; or -EINVAL (NULL, @size 0 or not a multiple of 8).
 * Kernel:  /proc/vmstat, /proc/meminfo, /sys/kernel/debug/bdi.
 */
IOMAP_API int iomap_cache_stat(struct iomap_cache *cache, struct iomap_cache_stat *st, size_t size);

/**
 * iomap_file_stat - the numbers of one file, all its handles together
 * @file: an open handle
 * @st:   gets them
 * @size: sizeof(*@st), as for iomap_cache_stat()
 *
 * Context: any thread; costs time proportional to what is cached of the file; not from a callback.
 * Return:  0; or -EINVAL (NULL, @size 0 or not a multiple of 8), -EBADF (the cache was abandoned).
 */
IOMAP_API int iomap_file_stat(struct iomap_file *file, struct iomap_file_stat *st, size_t size);

/**
 * iomap_device_stat - the numbers of one device
 * @device: the device
 * @st:     gets them
 * @size:   sizeof(*@st), as for iomap_cache_stat()
 *
 * Counts what was handed to this device, by whomever. A limit device and the one below it count separately.
 *
 * Context: any thread.
 * Return:  0; or -EINVAL (NULL, @size 0 or not a multiple of 8).
 * Kernel:  /sys/block/<disk>/stat.
 */
IOMAP_API int iomap_device_stat(struct iomap_device *device, struct iomap_device_stat *st, size_t size);

/**
 * iomap_stat_print - print the numbers of a cache
 * @cache:  the cache
 * @out:    an open stream
 * @format: IOMAP_STAT_TEXT, IOMAP_STAT_PROMETHEUS or IOMAP_STAT_JSON
 *
 * Context: any thread; sleeps as writing to @out does; not from a callback.
 * Return:  0; or -EINVAL (NULL, unknown @format), -EIO (the stream reports an error).
 */
IOMAP_API int iomap_stat_print(struct iomap_cache *cache, FILE *out, enum iomap_stat_format format);

#ifdef __cplusplus
}
#endif
#endif
