/*
 * cache.h - one page cache with its budgets, its flushers and its statistics
 *
 * Everything hangs off a cache: memory, threads, open files. Two caches never meet.
 */
#ifndef IOMAP_PUBLIC_CACHE_H
#define IOMAP_PUBLIC_CACHE_H

#include <iomap/base.h>

#ifdef __cplusplus
extern "C" {
#endif

#define IOMAP_NEVER             0xffffffffU     /* dirty_writeback_ms: no periodic writeback */
#define IOMAP_READAHEAD_OFF     0xffffffffU     /* readahead_bytes: read what is asked for, no more */

/* The granule that a dirty block charges against the dirty thresholds. */
enum iomap_accounting {
	IOMAP_ACCT_BLOCK = 0,           /* the dirty blocks themselves (default) */
	IOMAP_ACCT_PAGE,                /* every max(4 KiB, block) that holds a dirty block */
	IOMAP_ACCT_FOLIO,               /* the whole folio, as mainline Linux does */
};

/* What a small write into a large clean folio does first. Only the default works in 0.1 so far; another is -EOPNOTSUPP. */
enum iomap_write_policy {
	IOMAP_WRITE_KEEP = 0,           /* dirty the blocks in place (default) */
	IOMAP_WRITE_SPLIT,              /* always split the folio down to the write's order */
	IOMAP_WRITE_EVICT,              /* drop the clean folio, start a small one */
};

/* What happens to blocks whose writeback failed. */
enum iomap_error_policy {
	IOMAP_ERROR_KEEP_DIRTY = 0,     /* keep them, retry; fsync fails until they are durable (default) */
	IOMAP_ERROR_DROP,               /* mark them clean, report once per open handle, as Linux does */
};

/* How DONTCACHE writes are flushed. None waits for the I/O. What makes a file grow on its device goes by the flusher in any case. */
enum iomap_dontcache {
	IOMAP_DONTCACHE_KICK = 0,       /* the flusher is woken and writes what such writes have left dirty, files in turn (default) */
	IOMAP_DONTCACHE_NAIVE,          /* each call starts writing what it wrote, always */
	IOMAP_DONTCACHE_RATELIMIT,      /* likewise, but not while something of the file is in flight, and never more than what it
					   wrote; what it left is for background writeback or fsync */
};

/* The level handed to the log hook; the kernel's numbers. */
enum iomap_log_level {
	IOMAP_LOG_ERR = 3,              /* data could not be written, or the library found itself wrong */
	IOMAP_LOG_WARN = 4,             /* works, but not as well as asked for */
	IOMAP_LOG_INFO = 6,             /* why something was refused or chosen */
};

/* What iomap_cache_set() changes; same meaning, unit and bounds as the field of struct iomap_cache_params. */
enum iomap_tunable {
	IOMAP_TUNE_DIRTY_BYTES = 1,
	IOMAP_TUNE_DIRTY_BACKGROUND_BYTES,
	IOMAP_TUNE_DIRTY_EXPIRE_MS,
	IOMAP_TUNE_DIRTY_WRITEBACK_MS,
	IOMAP_TUNE_READAHEAD_BYTES,
	IOMAP_TUNE_MAX_FOLIO_BYTES,
	IOMAP_TUNE_DONTCACHE,
	/* not yet: -EOPNOTSUPP */
	IOMAP_TUNE_INFLIGHT_BYTES,
	IOMAP_TUNE_PINNED_BYTES,
	IOMAP_TUNE_PINNED_BACKGROUND_BYTES,
	IOMAP_TUNE_WRITE_POLICY,
};

/*
 * Where the library's metadata comes from, in place of jemalloc or malloc. Called from any thread, several at once, with
 * no lock held that the program could know of; may not call into this library. Must outlive the cache.
 */
struct iomap_allocator {
	void *(*alloc)(void *priv, size_t size, size_t align);          /* align: a power of two; NULL: no memory */
	void (*free)(void *priv, void *p, size_t size);                 /* the size it was allocated with; p is not NULL */
	void *priv;
};

/* How a cache is to be. Zero in a field means its default; start from IOMAP_CACHE_PARAMS_INIT or from all zeros. */
struct iomap_cache_params {
	size_t   struct_size;                   /* sizeof(struct iomap_cache_params); 0 = the struct of version 0.1 */
	uint64_t memory_bytes;                  /* folio memory, default 256 MiB, minimum 1 MiB */
	uint64_t max_folio_bytes;               /* power of two, 4096 = single pages, default 2 MiB; cut to at most
						   memory_bytes / 16. A file's folios are never below its block_size */
	enum iomap_accounting   accounting;
	enum iomap_write_policy write_policy;   /* not yet: -EOPNOTSUPP when set */
	enum iomap_error_policy error_policy;
	enum iomap_dontcache    dontcache;
	uint64_t dirty_bytes;                   /* hard dirty threshold, default 20 % of memory_bytes */
	uint64_t dirty_background_bytes;        /* the flusher starts here, default half of dirty_bytes; a value >= dirty_bytes
						   counts as half of it, as in Linux */
	uint64_t inflight_bytes;                /* not yet: -EOPNOTSUPP when set. Most that background writeback keeps at one
						   backing device, default 32 MiB; fsync is not bound by it */
	uint64_t pinned_bytes;                  /* not yet: -EOPNOTSUPP when set. Cap on folio memory held by dirty or
						   in-flight folios, default 60 % of memory_bytes */
	uint64_t pinned_background_bytes;       /* not yet: -EOPNOTSUPP when set. Above it folios are split before they are
						   dirtied, default half of pinned_bytes */
	unsigned dirty_expire_ms;               /* dirty data older than this is written, default 30000 */
	unsigned dirty_writeback_ms;            /* periodic flusher wake-up, default 5000; IOMAP_NEVER = off */
	unsigned writeback_threads;             /* helpers beside each backing device's own flusher, default 2 */
	unsigned queue_depth;                   /* I/Os in flight per backing device, default 128 */
	unsigned readahead_bytes;               /* default 128 KiB; IOMAP_READAHEAD_OFF = none; fadvise changes it per handle */
	bool     strict_limit;                  /* not yet: -EOPNOTSUPP when set. Throttle each backing device by its own share
						   even below the global limit */
	const struct iomap_allocator *allocator; /* NULL: a jemalloc arena of this cache's own where the program has
						   jemalloc, else malloc. Must outlive the cache */
	const char *stat_path;                  /* not yet: -EOPNOTSUPP when set. A file mapped shared with live statistics */
	void (*log)(void *priv, int level, const char *message);        /* NULL: silence. One line, no newline; valid during
						   the call; from any thread, several at once; may not call this library */
	void    *log_priv;
};

#define IOMAP_CACHE_PARAMS_INIT { sizeof(struct iomap_cache_params), 0, 0, IOMAP_ACCT_BLOCK, IOMAP_WRITE_KEEP, \
	IOMAP_ERROR_KEEP_DIRTY, IOMAP_DONTCACHE_KICK, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, false, NULL, NULL, NULL, NULL }

/**
 * iomap_cache_create - make a page cache
 * @out:    gets the cache; the caller ends it by iomap_cache_destroy() or iomap_cache_abandon()
 * @params: how it is to be, copied, or NULL for all defaults
 *
 * Address space of memory_bytes is reserved at once and filled in the background; it is never exceeded.
 *
 * Context: any thread; sleeps on memory; not from a callback.
 * Return:  0; or -EINVAL (@out NULL, a field out of its bounds, a struct_size that no version had), -EOPNOTSUPP (a field
 *          marked "not yet" is set, or one that this version does not know), -ENOMEM, -EAGAIN (a thread could not be
 *          started). *@out changes only on 0.
 * Kernel:  there is one, made at boot. The thresholds are vm.dirty_bytes and its sisters.
 */
IOMAP_API int iomap_cache_create(struct iomap_cache **out, const struct iomap_cache_params *params);

/**
 * iomap_cache_params_parse - read params from one line of text
 * @params: initialised params; the fields named in @text change, all others stay
 * @text:   "memory=1g,accounting=block,dirty=200m"
 *
 * One syntax for environment strings, mount options, plugins and tools: `key=value` separated by commas; an empty string
 * changes nothing. A key is the name of a field, "_bytes" may be left off. Bytes may end in k, m, g or t (powers of
 * 1024, either case); accounting is block, page or folio; write_policy is keep, split or evict; error_policy is keep_dirty
 * or drop; dontcache is kick, naive or ratelimit; dirty_writeback_ms may be never, readahead may be off; strict_limit is 0
 * or 1. allocator, stat_path, log and struct_size have no key. Whether the values fit is checked by iomap_cache_create().
 *
 * Context: any thread; @params belongs to the caller; never sleeps.
 * Return:  0; or -EINVAL (NULL, unknown key, bad or overflowing value) and @params unchanged.
 */
IOMAP_API int iomap_cache_params_parse(struct iomap_cache_params *params, const char *text);

/**
 * iomap_cache_sync - make all files durable
 * @cache: the cache
 *
 * Everything written to any file of the cache before the call is written back and flushed, closed files with data left
 * included. Goes on after an error, so that one bad device does not keep the others from being written.
 *
 * Context: any thread; sleeps on I/O; not from a callback.
 * Return:  0 only if all of it is durable; else the first error (-EIO, -ENOSPC, what the device said); or -EINVAL (NULL).
 * Kernel:  sync(2), syncfs(2). Differs: errors are returned.
 */
IOMAP_API int iomap_cache_sync(struct iomap_cache *cache);

/**
 * iomap_cache_drop - drop every clean, unpinned folio
 * @cache: the cache
 *
 * What is dirty, in flight or in use stays. For measurements, and to give memory to other files of the cache at once.
 *
 * Context: any thread; takes folio locks by trying; not from a callback.
 * Return:  0; or -EINVAL (NULL).
 * Kernel:  echo 1 > /proc/sys/vm/drop_caches.
 */
IOMAP_API int iomap_cache_drop(struct iomap_cache *cache);

/**
 * iomap_cache_set - change a setting while the cache works
 * @cache: the cache
 * @which: IOMAP_TUNE_ plus the params field's name
 * @value: the new value in that field's unit; 0 = the default
 *
 * Takes effect at once: sleeping writers and flushers look again. Readahead of a handle that fadvise changed stays.
 * Folios larger than a lowered max_folio_bytes stay until they are dropped.
 *
 * Context: any thread; not from a callback.
 * Return:  0; or -EINVAL (NULL, unknown @which, @value out of bounds), -EOPNOTSUPP (a tunable marked "not yet").
 * Kernel:  writing to /proc/sys/vm/dirty_bytes and its sisters.
 */
IOMAP_API int iomap_cache_set(struct iomap_cache *cache, enum iomap_tunable which, uint64_t value);

/**
 * iomap_cache_check - recompute every invariant of a cache
 * @cache:   the cache
 * @why:     gets the first broken invariant in words (or what had to be skipped), terminated; may be NULL
 * @why_len: bytes at @why
 *
 * Goes through all files and folios and recomputes from their bitmaps what the counters claim. Each object is checked
 * under its own lock; sums over many objects only where nothing moved meanwhile, else they are skipped and @why says so.
 * For tests and for finding bugs; costs time proportional to what is cached.
 *
 * Context: any thread, also while others use the cache; not from a callback.
 * Return:  0; -EUCLEAN where something is broken; or -EINVAL (@cache NULL).
 */
IOMAP_API int iomap_cache_check(struct iomap_cache *cache, char *why, size_t why_len);

/**
 * iomap_cache_destroy - sync a cache and end it
 * @cache: the cache; gone when 0 is returned, NULL does nothing
 *
 * Files closed with data left are written first.
 *
 * Context: one thread, when no other call on @cache runs or comes; sleeps on I/O; not from a callback.
 * Return:  0; or -EBUSY (files are open); or the error that kept data from becoming durable. On error the cache stays as
 *          it was: reopen the file and iomap_resolve(), or give up by iomap_cache_abandon().
 */
IOMAP_API int iomap_cache_destroy(struct iomap_cache *cache);

/**
 * iomap_cache_abandon - end a cache as if the power went
 * @cache: the cache; NULL does nothing
 *
 * Writes nothing more and frees everything. Handles still open answer -EBADF until closed. Requests in flight are waited
 * for, at most 10 s, because the device works on our memory; after that the memory is leaked rather than reused.
 *
 * Context: one thread, while no other call on @cache or its files runs; sleeps; not from a callback.
 */
IOMAP_API void iomap_cache_abandon(struct iomap_cache *cache);

#ifdef __cplusplus
}
#endif
#endif
