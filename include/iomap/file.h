/*
 * file.h - POSIX-shaped files, read and written through a cache
 *
 * All opens of one file in a cache share its contents, size and errors; each handle has its own readahead state, advice
 * and error cursor.
 *
 * Atomic unit: the block (block_size). Reads and writes never see part of one. Larger calls go folio by folio, so two
 * overlapping writes may interleave at folio boundaries; APPEND calls never interleave.
 *
 * Crash: to data that no fsync covered, the death of the process (exit and exec included) is what a power cut is to the
 * kernel's cache. What a returned fsync covered is there.
 *
 * Other readers and writers of the file, mmap included, see data after fsync only, and what they write may be lost. Its
 * size is ours while it is open. An advisory OFD lock on byte 2^63 - 2 keeps a second cache from opening it.
 */
#ifndef IOMAP_PUBLIC_FILE_H
#define IOMAP_PUBLIC_FILE_H

#include <sys/stat.h>
#include <sys/uio.h>
#include <iomap/base.h>
#include <iomap/ops.h>

#ifdef __cplusplus
extern "C" {
#endif

/* iomap_file_params.flags */
#define IOMAP_OPEN_SHARED       (1U << 0)       /* do not claim the file for this cache alone */
#define IOMAP_OPEN_UNSTABLE     (1U << 1)       /* contents may change while they are being written: a writer never waits for the
						   device, nothing is copied for it; after a crash even a sector may be half old and
						   half new. For engines that checksum, and write twice, themselves */

/* iomap_preadv2() and iomap_pwritev2() */
#define IOMAP_RWF_NOWAIT        (1 << 0)        /* -EAGAIN (or a short count) instead of waiting for I/O or the throttle */
#define IOMAP_RWF_DSYNC         (1 << 1)        /* writes: as if followed by iomap_fdatasync() on what was written */
#define IOMAP_RWF_SYNC          (1 << 2)        /* writes: as if followed by iomap_fsync() on what was written */
#define IOMAP_RWF_APPEND        (1 << 3)        /* writes: at the end of the file, whatever pos says */
#define IOMAP_RWF_DONTCACHE     (1 << 4)        /* what is read or written on the way does not stay in the cache */
#define IOMAP_RWF_DIRECT        (1 << 5)        /* between the device and the caller's memory, coherent with the cache */
#define IOMAP_RWF_WRITETHROUGH  (1 << 6)        /* writes: into the cache, and with the device before the call returns */

/* iomap_sync_range() */
#define IOMAP_SYNC_WAIT_BEFORE  (1U << 0)       /* wait for what is in flight in the range */
#define IOMAP_SYNC_WRITE        (1U << 1)       /* start writing what is dirty there */
#define IOMAP_SYNC_WAIT_AFTER   (1U << 2)       /* wait for what is in flight then */
#define IOMAP_SYNC_DURABLE      (1U << 3)       /* all of these, and then on stable media */

/* iomap_failed_range.flags */
#define IOMAP_FAILED_FLUSH      (1U << 0)       /* lost by a failed flush, not by a failed write */

/* How a file is to be opened. Zero in a field means its default, and takes what another open of the file has set. */
struct iomap_file_params {
	size_t   struct_size;                   /* sizeof(struct iomap_file_params); 0 = the struct of version 0.1 */
	uint32_t block_size;                    /* granularity of dirty and uptodate, power of two, 512 … 65536; default
						   max(4096, the device's block) */
	unsigned flags;                         /* IOMAP_OPEN_* */
	struct iomap_device *device;            /* NULL: an O_DIRECT device on `path`. Else `path` is the file's name on that
						   device: same device and name = same file; NULL = the device's only file */
	const struct iomap_ops *ops;            /* NULL: file offset = device offset (then a device holds one file). Else the
						   engine maps blocks, on `device`, which it must give; see <iomap/ops.h> */
	const struct iomap_writeback_ops *writeback_ops; /* with ops: where dirty blocks go; NULL: the file cannot be
						   written */
	void    *ops_priv;                      /* handed to every callback. It and both ops outlive the file: until
						   iomap_cache_sync() after the last close, or the end of the cache */
	uint64_t size;                          /* with ops: the file's size, where this is the first open. Bytes of an earlier
						   one may still be on their way: count as iomap_end() and set_size()
						   tell, or call iomap_cache_sync() first */
};

#define IOMAP_FILE_PARAMS_INIT { sizeof(struct iomap_file_params), 0, 0, NULL, NULL, NULL, NULL, 0 }

/* Bytes that are in the cache and could not be made durable. */
struct iomap_failed_range {
	uint64_t pos, len;
	int error;                              /* the last negative errno */
	unsigned tries;                         /* writes that failed so far */
	unsigned flags;                         /* IOMAP_FAILED_* */
};

/* What iomap_resolve() does with bytes that could not be made durable. */
enum iomap_resolution {
	IOMAP_RESOLVE_RETRY = 0,                /* write what is cached again, now */
	IOMAP_RESOLVE_DISCARD,                  /* give the bytes up, re-read from the device */
};

/**
 * iomap_open - open a file through a cache
 * @cache:  the cache that will hold its contents
 * @path:   regular file or block device; must be on a file system that can do O_DIRECT
 * @oflags: as open(2): access mode, O_CREAT, O_EXCL, O_TRUNC, O_APPEND (every write is IOMAP_RWF_APPEND), O_DSYNC, O_SYNC
 *          (every write is IOMAP_RWF_DSYNC, _SYNC); O_CLOEXEC is implied
 * @mode:   permissions where it is created
 * @out:    gets the handle; the caller ends it by iomap_close()
 *
 * The same as iomap_open_with() with no params.
 *
 * Context: any thread; sleeps on I/O; not from a callback.
 * Return:  as iomap_open_with().
 */
IOMAP_API int iomap_open(struct iomap_cache *cache, const char *path, int oflags, mode_t mode, struct iomap_file **out);

/**
 * iomap_open_with - open a file with a chosen block size or device
 * @cache:  the cache that will hold its contents
 * @path:   as for iomap_open(); with params->device: the file's name there, or NULL
 * @oflags: as for iomap_open()
 * @mode:   permissions where it is created
 * @params: how, copied; NULL: all defaults
 * @out:    gets the handle; the caller ends it by iomap_close()
 *
 * Two opens of one file (same st_dev and st_ino; same st_rdev for a block device; same device and name) are one file. A
 * file that writes needs is opened read-write, because part of a block is written by reading the rest. Data left by a
 * last close is joined.
 *
 * Context: any thread; sleeps on I/O; not from a callback.
 * Return:  0; or what open(2) says (-ENOENT, -EACCES, -EEXIST, -EROFS, -EMFILE, …); -EACCES also without read
 *          permission; -EISDIR (a directory), -ENODEV (fifo, socket, character device), -EOPNOTSUPP (O_DIRECT is not
 *          possible there, or a field this version does not know), -EBUSY (another cache has it; the device serves another
 *          cache; open already with another block_size or device, or stable where UNSTABLE is asked for), -EINVAL (NULL, unknown flag, block_size no power of
 *          two, out of bounds or below the device's block; a second name on a device), -ENOMEM. *@out changes only on 0.
 * Kernel:  open(2). Differs: an advisory lock claims the file.
 */
IOMAP_API int iomap_open_with(struct iomap_cache *cache, const char *path, int oflags, mode_t mode,
			      const struct iomap_file_params *params, struct iomap_file **out);

/**
 * iomap_close - close a handle
 * @file: an open handle; closed in any case
 *
 * Does not sync: dirty data is written later by the flusher, and the file's descriptors stay open until a flush has
 * covered it. The last close waits for requests in flight; of an unlinked file, it cancels its dirty data.
 *
 * Context: one thread, when no other call on @file runs or comes; may sleep; not from a callback.
 * Return:  0; or the error of blocks whose writeback failed and that this handle has not reported; or -EINVAL (NULL),
 *          -EBADF (the cache was abandoned). Also then the handle is gone.
 * Kernel:  close(2). Differs: errors of writeback are reported, data left keeps the file open.
 */
IOMAP_API int iomap_close(struct iomap_file *file);

/**
 * iomap_pread - read bytes through the cache
 * @file: an open handle
 * @buf:  destination, any alignment; bytes past the returned count are undefined
 * @len:  bytes; 0 does nothing
 * @pos:  first byte in the file, >= 0
 *
 * Sees every write that returned before. A hit takes no lock. What is missing is read, with readahead.
 *
 * Context: any thread; sleeps on memory and I/O; not from a callback.
 * Return:  bytes read: @len, or fewer where the file ends or an error came after the first byte; 0 at or past the end;
 *          or -EINVAL (NULL handle, @pos < 0, @pos + @len past INT64_MAX), -EFAULT (@buf NULL), -EBADF (opened write-only,
 *          cache abandoned), -ENOMEM, -EIO or what the device said.
 * Kernel:  filemap_read(). Differs: never sees part of a block write.
 */
IOMAP_API ssize_t iomap_pread(struct iomap_file *file, void *buf, size_t len, off_t pos);

/**
 * iomap_pwrite - write bytes through the cache
 * @file: an open handle
 * @buf:  source, any alignment
 * @len:  bytes; 0 does nothing
 * @pos:  first byte in the file, >= 0; ignored where the handle has O_APPEND
 *
 * On return every reader of the file sees the bytes. They are not durable: that takes iomap_fdatasync().
 *
 * Context: any thread; takes the inode lock; sleeps on memory, I/O and the throttle; not from a callback.
 * Return:  bytes written, fewer than @len only when an error came after the first; or -EINVAL (NULL handle, @pos < 0,
 *          @pos + @len past INT64_MAX), -EFAULT (@buf NULL), -EFBIG (past the largest size), -EBADF (opened read-only,
 *          cache abandoned), -ENOSPC, -EDQUOT, -ENOMEM, -EIO or what the device said (a block had to be read and could
 *          not, or the device has failed for good).
 * Kernel:  iomap_file_buffered_write(). Differs: lack of space is reported here, never by a later fsync.
 */
IOMAP_API ssize_t iomap_pwrite(struct iomap_file *file, const void *buf, size_t len, off_t pos);

/**
 * iomap_preadv2 - read into several buffers, with flags
 * @file:   an open handle
 * @iov:    destinations, filled in order
 * @iovcnt: how many, 0 … 1024
 * @pos:    first byte in the file, >= 0
 * @flags:  any of IOMAP_RWF_NOWAIT, IOMAP_RWF_DONTCACHE, IOMAP_RWF_DIRECT; the flags of writes are accepted and do nothing
 *
 * With DONTCACHE the memory that this read brings in is given back once it has been copied; what was cached before stays. A handle
 * that reads on where its last such read ended keeps what it stopped in until it has read past that, reads elsewhere, or is closed.
 * Read ahead and not used, it stays until memory is short.
 *
 * With DIRECT what is dirty of the range is written and waited for, then the bytes come from the device into @iov; the cache
 * stays as it is. Any place, length and memory will do; best are multiples of the device's block in memory aligned to its
 * mem_align (iomap_device_info()), other memory is filled by way of a copy. What cannot be written first comes from the cache.
 * Direct or not, no read sees part of a block write.
 *
 * Context: as iomap_pread(); with NOWAIT it does not sleep on I/O, but for DIRECT's own transfer.
 * Return:  as iomap_pread(); or -EAGAIN (NOWAIT, and the first byte is not cached; with DIRECT: something of the range is dirty
 *          or being written, or a lock or memory would have to be waited for), -EOPNOTSUPP (unknown flag), -EINVAL
 *          (@iovcnt out of bounds, lengths add up past SSIZE_MAX), -EFAULT (@iov NULL, or a NULL base of non-zero length).
 * Kernel:  preadv2(2). Differs: @pos -1 is an error, there is no file position.
 */
IOMAP_API ssize_t iomap_preadv2(struct iomap_file *file, const struct iovec *iov, int iovcnt, off_t pos, int flags);

/**
 * iomap_pwritev2 - write from several buffers, with flags
 * @file:   an open handle
 * @iov:    sources, taken in order
 * @iovcnt: how many, 0 … 1024
 * @pos:    first byte in the file, >= 0; ignored with IOMAP_RWF_APPEND
 * @flags:  any of IOMAP_RWF_*
 *
 * With DSYNC or SYNC a positive return means that so much is durable. APPEND calls on one file go one after the other,
 * each whole. With DONTCACHE writing starts soon (enum iomap_dontcache) and is not waited for; memory that this call made is given
 * back once it is written, unless an ordinary write has used it meanwhile; what was cached before stays. All flags go together.
 *
 * With DIRECT the bytes go from @iov to the device, and what the cache held of the range is written and dropped first. Any
 * place, length and memory will do: what the device cannot take as it is (part of one of its blocks inside the file; see
 * iomap_preadv2() for memory), or what the cache cannot let go of, goes through the cache and is written from there before the
 * call returns. One direct write at a time changes a file. After an error blocks of the range may be old, new or, on the device
 * alone, half of each; where they went through the cache it holds them, to be written later as after any failed write.
 *
 * With WRITETHROUGH the bytes go into the cache as always, and then the blocks they touch to the device, before the call returns;
 * other dirty blocks of the file do not, unless they share a granule of the accounting or must come first because the file grows.
 * An error of the device's is returned to this call, and the bytes stay cached (error_policy says how). Not durable either
 * without DSYNC.
 *
 * Context: as iomap_pwrite(); with NOWAIT it sleeps neither on I/O (but for DIRECT's own transfer) nor in the throttle.
 * Return:  as iomap_pwrite(); or -EAGAIN (NOWAIT, and it would have slept before the first byte; with DIRECT: something of the
 *          range is cached, or it would go through the cache), -EOPNOTSUPP (unknown flag), -EINVAL (WRITETHROUGH together with
 *          NOWAIT, DONTCACHE or DIRECT) and as iomap_preadv2(), -EFAULT as there; with DIRECT or WRITETHROUGH what the device said; with
 *          DSYNC or SYNC also the errors of iomap_fdatasync().
 * Kernel:  pwritev2(2).
 */
IOMAP_API ssize_t iomap_pwritev2(struct iomap_file *file, const struct iovec *iov, int iovcnt, off_t pos, int flags);

/**
 * iomap_fsync - make a file durable
 * @file: an open handle, any access mode
 *
 * Writes what is dirty, waits, then flushes the device once; concurrent calls share a flush. Covers all that was written
 * before the call through any handle, the file's size and metadata, and, where this library created the file, its
 * directory entry (once). Blocks whose write failed before are tried again, once.
 *
 * Context: any thread; sleeps on I/O; not from a callback.
 * Return:  0 only if every byte written before is durable; else the error of this attempt (-EIO, -ENOSPC, what the
 *          device said), or that of an earlier failed flush until iomap_resolve(); -EINVAL (NULL), -EBADF (cache
 *          abandoned). With IOMAP_ERROR_DROP each handle gets an error once, as in Linux.
 * Kernel:  fsync(2). Differs: failed data stays dirty and the error stays true (unless IOMAP_ERROR_DROP).
 */
IOMAP_API int iomap_fsync(struct iomap_file *file);

/**
 * iomap_fdatasync - make a file's contents durable
 * @file: an open handle, any access mode
 *
 * As iomap_fsync(), without times and the directory entry: contents, and the size they need to be read back.
 *
 * Context: any thread; sleeps on I/O; not from a callback.
 * Return:  as iomap_fsync().
 * Kernel:  fdatasync(2).
 */
IOMAP_API int iomap_fdatasync(struct iomap_file *file);

/**
 * iomap_sync_range - write out part of a file
 * @file:  an open handle, any access mode
 * @pos:   first byte, >= 0
 * @len:   bytes, >= 0; 0 = to the end of the file
 * @flags: any of IOMAP_SYNC_*; 0 does nothing
 *
 * WAIT_BEFORE, WRITE and WAIT_AFTER are those of sync_file_range(2), on the blocks that hold the range and no others: nothing is
 * flushed, nothing is durable. WRITE alone passes over blocks in flight; with WAIT_AFTER what was dirty when the call began has been
 * written when it returns. What makes the file longer must be written in order: then WRITE waits, and writes
 * dirty blocks between the old end and the range, too.
 *
 * DURABLE makes these bytes what iomap_fdatasync() makes all: written, with the size that they need, on stable media.
 *
 * Context: any thread; sleeps on I/O; not from a callback.
 * Return:  0; or the error of a block of the range that is still not written (not from WRITE alone); DURABLE: as iomap_fdatasync(),
 *          an earlier failed flush of the file included; -EINVAL (NULL, negative, overflowing, unknown flag), -EBADF (cache
 *          abandoned). With IOMAP_ERROR_DROP each handle gets an error once, as in Linux.
 * Kernel:  sync_file_range(2). Differs: blocks, not pages; DURABLE.
 */
IOMAP_API int iomap_sync_range(struct iomap_file *file, off_t pos, off_t len, unsigned flags);

/**
 * iomap_ftruncate - set a file's size
 * @file: a handle opened for writing
 * @size: new size in bytes, >= 0
 *
 * Down: cached contents past @size go, dirty or not, and so does what failed there. Up: reads as zeros. Durable by a
 * later fsync.
 *
 * Context: any thread; takes the inode lock exclusively; sleeps on I/O; not from a callback.
 * Return:  0; or -EINVAL (NULL, @size < 0, opened read-only, a device of fixed size), -EBADF (cache abandoned), -EFBIG,
 *          -EIO or what the device said; the size is the old one then.
 * Kernel:  ftruncate(2).
 */
IOMAP_API int iomap_ftruncate(struct iomap_file *file, off_t size);

/**
 * iomap_fallocate - ask for space, give it back, or make zeros of it
 * @file: a handle opened for writing
 * @mode: 0: space for the range, the file as long as that at least; FALLOC_FL_KEEP_SIZE: the same, but the size stays;
 *        FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE: the range reads as zeros and its blocks are given back;
 *        FALLOC_FL_ZERO_RANGE, alone (the file as long as that at least) or with FALLOC_FL_KEEP_SIZE: reads as zeros and keeps its blocks
 * @pos:  first byte, >= 0
 * @len:  bytes, > 0
 *
 * What is dirty in a range that is punched or zeroed is given up without being written. Whole blocks are the device's to punch or
 * zero, the parts at the edges are zeroed in the cache. Durable by a later fsync, or
 * when it returns where the handle has O_DSYNC or O_SYNC. ZERO_RANGE writes zeros through the cache where the
 * device cannot do it; so does PUNCH_HOLE on a device of fixed size or without an allocate operation. A device of fixed size
 * has all its space.
 *
 * Context: any thread; takes the inode lock exclusively; sleeps on memory, I/O and the throttle; not from a callback.
 * Return:  0; or -EINVAL (NULL, @pos < 0, @len <= 0, @pos + @len past INT64_MAX), -EOPNOTSUPP (any other @mode, or the file
 *          system cannot; nothing has changed), -EBADF (opened read-only, cache abandoned), -ENOSPC (also past the end of a device
 *          of fixed size), -EFBIG, -EDQUOT, -ENOMEM, -EIO or what the device said. After another error than the first three a
 *          part of the range may be done.
 * Kernel:  fallocate(2). Differs: other modes are not there; -EINVAL, not -EFBIG, where the range overflows.
 */
IOMAP_API int iomap_fallocate(struct iomap_file *file, int mode, off_t pos, off_t len);

/**
 * iomap_fadvise - say how a file will be used
 * @file:   an open handle
 * @pos:    first byte, >= 0
 * @len:    bytes, >= 0; 0 = to the end of the file
 * @advice: POSIX_FADV_NORMAL, _SEQUENTIAL (readahead twice as far), _RANDOM (no readahead; all three for this handle,
 *          whatever the range), _WILLNEED (start reading the range), _DONTNEED (start writing it, drop the clean folios
 *          inside), _NOREUSE (reads of this handle do not make memory worth keeping, until _NORMAL)
 *
 * Never loses data and never waits for I/O: _DONTNEED drops what is clean now, a second call what the first has had written.
 *
 * Context: any thread; not from a callback.
 * Return:  0; or -EINVAL (NULL, negative, overflowing, unknown advice), -EBADF (cache abandoned).
 * Kernel:  generic_fadvise().
 */
IOMAP_API int iomap_fadvise(struct iomap_file *file, off_t pos, off_t len, int advice);

/**
 * iomap_lseek - positions relative to what the file holds
 * @file:   an open handle
 * @pos:    where to look from; SEEK_END: offset to the file's size
 * @whence: SEEK_DATA, SEEK_HOLE or SEEK_END
 *
 * A block is data if it is dirty or being written, or if something is stored there; a hole if not, also one that space was
 * reserved for and one that was read. There is a hole at the end of every file. Where the device does not tell, all that it holds is
 * data. A handle has no position of its own, so this only answers.
 *
 * Context: any thread; SEEK_DATA and SEEK_HOLE may sleep; not from a callback.
 * Return:  SEEK_DATA, SEEK_HOLE: the first byte at or after @pos that is data, or in a hole; -ENXIO (@pos < 0 or at or past the
 *          end, no data after @pos), what the device said; SEEK_END: the file's size + @pos, -EOVERFLOW;
 *          or -EINVAL (NULL, negative result, any other @whence), -EBADF (cache abandoned).
 * Kernel:  lseek(2). Differs: clean cache over unwritten space is no data; SEEK_SET and SEEK_CUR are not there.
 */
IOMAP_API off_t iomap_lseek(struct iomap_file *file, off_t pos, int whence);

/**
 * iomap_size - the file's size
 * @file: an open handle
 *
 * The size as writes through this cache left it, on the device or not yet.
 *
 * Context: any thread; never sleeps.
 * Return:  bytes; or -EINVAL (NULL), -EBADF (cache abandoned).
 */
IOMAP_API off_t iomap_size(struct iomap_file *file);

/**
 * iomap_fstat - fstat(2) with the cached size and times
 * @file: an open handle
 * @st:   gets it; for a device that is no kernel file only st_size, st_blksize, st_mtim and st_mode (S_IFREG) are set
 *
 * Context: any thread; may sleep; not from a callback.
 * Return:  0; or -EINVAL (NULL), -EBADF (cache abandoned), what fstat(2) says.
 * Kernel:  fstat(2).
 */
IOMAP_API int iomap_fstat(struct iomap_file *file, struct stat *st);

/**
 * iomap_stat - stat(2) of a path, with the cached size and times where the file is open here
 * @cache: the cache
 * @path:  any path
 * @st:    gets it
 *
 * Context: any thread; may sleep; not from a callback.
 * Return:  0; or -EINVAL (NULL), what stat(2) says.
 * Kernel:  stat(2).
 */
IOMAP_API int iomap_stat(struct iomap_cache *cache, const char *path, struct stat *st);

/**
 * iomap_fd - the descriptor below a file
 * @file: an open handle
 *
 * For ioctl and locks; it stays the library's. Closing another descriptor of the same file drops the process's POSIX
 * locks on it (fcntl(2)); OFD locks are safe.
 *
 * Context: any thread; never sleeps.
 * Return:  the descriptor, opened with O_DIRECT; or -ENOTTY (the device is no kernel file), -EINVAL (NULL), -EBADF (cache
 *          abandoned).
 */
IOMAP_API int iomap_fd(struct iomap_file *file);

/**
 * iomap_failed_ranges - which bytes could not be made durable
 * @file: an open handle
 * @out:  gets the first @max ranges, ascending and disjoint; may be NULL if @max is 0
 * @max:  room at @out
 *
 * Context: any thread; not from a callback.
 * Return:  how many there are, perhaps more than @max; or -EINVAL (NULL), -EBADF (cache abandoned).
 * Kernel:  none; the errors of writeback are not kept there.
 */
IOMAP_API int iomap_failed_ranges(struct iomap_file *file, struct iomap_failed_range *out, unsigned max);

/**
 * iomap_resolve - decide what becomes of bytes that could not be made durable
 * @file: a handle opened for writing
 * @pos:  first byte, >= 0
 * @len:  bytes, >= 0; 0 = to the end of the file
 * @how:  IOMAP_RESOLVE_RETRY: write what is cached again, now, and flush; what a failed flush lost and is no longer cached
 *        stays listed. IOMAP_RESOLVE_DISCARD: give failed bytes of the range up; what the device holds is true again
 *
 * Context: any thread; takes the inode lock; sleeps on I/O; not from a callback.
 * Return:  0: RETRY: all of the range is durable; DISCARD: nothing of the range is listed any more; or the error that
 *          remains (-EIO where bytes are neither durable nor cached), -EINVAL (NULL, negative, overflowing, unknown @how),
 *          -EBADF (opened read-only, cache abandoned).
 * Kernel:  none.
 */
IOMAP_API int iomap_resolve(struct iomap_file *file, off_t pos, off_t len, enum iomap_resolution how);

#ifdef __cplusplus
}
#endif
#endif
