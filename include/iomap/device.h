/*
 * device.h - what blocks are stored on
 *
 * Three devices come with the library: a file or block device through O_DIRECT and libaio, memory, and a rate limiter in
 * front of any other. An engine brings its own through iomap_device_create(): a partition, an RBD image, an NVMe queue.
 *
 * A device serves the first cache that opens a file on it; another cache gets -EBUSY.
 */
#ifndef IOMAP_PUBLIC_DEVICE_H
#define IOMAP_PUBLIC_DEVICE_H

#include <sys/uio.h>
#include <iomap/base.h>

#ifdef __cplusplus
extern "C" {
#endif

enum iomap_request_op {
	IOMAP_REQ_READ = 0,
	IOMAP_REQ_WRITE,
	IOMAP_REQ_FLUSH,                /* no memory; pos and iovcnt are 0 */
};

/*
 * One I/O, made by the library, the device's from submit() until it calls done().
 *
 * pos and the total length are multiples of info.block, memory and the length of each piece of info.mem_align. Only a
 * write that ends at the file's size may end unaligned: afterwards the size is exactly that end, never more. A device of
 * fixed size never gets one.
 */
struct iomap_request {
	unsigned op;                            /* enum iomap_request_op */
	uint64_t pos;                           /* byte on the device */
	const struct iovec *iov;                /* valid until done() */
	int iovcnt;
	int64_t result;                         /* set before done(): bytes transferred, perhaps fewer, or -errno; a flush: 0 */
	void (*done)(struct iomap_request *);   /* the device calls it exactly once, from any thread, holding no lock of its
						   own; it neither sleeps nor allocates; the request is gone after it */
	void *priv;                             /* whose request it is; not the device's */
	/* the library's own, leave alone */
	struct iomap_device *device;
	void (*owner_done)(struct iomap_request *);
};

struct iomap_device_info {
	uint32_t block;                         /* positions and lengths are multiples of this; power of two, 512 … 65536 */
	uint32_t mem_align;                     /* of memory handed to it; power of two, at most 4096; 0 = any */
	uint64_t max_bytes;                     /* largest single request; 0 = no limit */
	uint64_t optimal_io;                    /* size of request it likes best; 0 = does not say */
	uint64_t size;                          /* bytes on it when asked */
};

/* What a device can do. Functions return 0 (submit: a count) or a negative errno. */
struct iomap_device_ops {
	/*
	 * Starts @reqs[0 … n - 1], asynchronous, completed in any order. Returns how many it took, counted from the front: a
	 * full queue takes fewer, and the rest is offered again after the next completion; or -errno where the first
	 * cannot be taken ever. Never called under a short lock. Writeback's WRITE may use other files of this
	 * cache, stored elsewhere, and is not throttled there. READ, and the WRITE of direct I/O, come with locks of their file
	 * held: no file of this cache then. A direct READ may be in flight beside a WRITE of the same bytes; what it returns
	 * then is not used. Two WRITEs of the same bytes are never in flight together.
	 */
	int (*submit)(struct iomap_device *device, struct iomap_request **reqs, unsigned n);
	/*
	 * All that was completed before this call is durable before done() of @req reports 0. On -errno, done() is not called. May use
	 * other files as WRITE may.
	 */
	int (*flush)(struct iomap_device *device, struct iomap_request *req);
	/* Cuts or extends (by zeros) to @size; NULL: the device has a fixed size. */
	int (*set_size)(struct iomap_device *device, uint64_t size);
	/*
	 * fallocate(2): space for a range (mode FALLOC_FL_KEEP_SIZE), the range zeros and its space given back (FALLOC_FL_PUNCH_HOLE |
	 * FALLOC_FL_KEEP_SIZE) or kept (FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE); -EOPNOTSUPP for what it cannot do. Starts at a
	 * multiple of info.block and ends at one, or at or past the size; no write of the range is in flight. Comes with locks of
	 * its file held: no file of this cache then. Durable by the next flush. May be NULL: zeros are written instead.
	 */
	int (*allocate)(struct iomap_device *device, uint64_t pos, uint64_t len, int mode);
	/* SEEK_DATA or SEEK_HOLE from @pos, -ENXIO past the end; may be NULL: all is data. */
	int (*seek)(struct iomap_device *device, uint64_t pos, int whence, uint64_t *out);
	/* Frees what is behind priv. No request is in flight and none comes. */
	void (*destroy)(struct iomap_device *device);
};

/**
 * iomap_device_create - a device of the program's own
 * @ops:  what it does; must outlive the device; submit and flush are required
 * @priv: handed back by iomap_device_priv(); freed by ops->destroy
 * @info: its limits and size, copied
 * @out:  gets the device with one reference, the caller's, dropped by iomap_device_close()
 *
 * Context: any thread.
 * Return:  0; or -EINVAL (NULL, a missing operation, bad @info), -ENOMEM. On error @priv stays the caller's.
 */
IOMAP_API int iomap_device_create(const struct iomap_device_ops *ops, void *priv, const struct iomap_device_info *info,
				  struct iomap_device **out);

/**
 * iomap_device_priv - the pointer given to iomap_device_create()
 * @device: a device made by iomap_device_create()
 *
 * Context: any thread, callbacks included.
 * Return:  that pointer; for NULL and for the library's own devices the value means nothing to the program.
 */
IOMAP_API void *iomap_device_priv(struct iomap_device *device);

/**
 * iomap_device_close - drop the creator's reference
 * @device: the device; not to be used by the caller afterwards
 *
 * Open files, and files with data left to write, hold references of their own; so does a limit device on the one below.
 * The last one calls ops->destroy.
 *
 * Context: any thread; may sleep; not from a callback.
 * Return:  0; or -EINVAL (NULL).
 */
IOMAP_API int iomap_device_close(struct iomap_device *device);

/**
 * iomap_device_info - limits and size of a device
 * @device: the device
 * @out:    gets them; size is the current one
 *
 * Context: any thread.
 * Return:  0; or -EINVAL (NULL).
 */
IOMAP_API int iomap_device_info(struct iomap_device *device, struct iomap_device_info *out);

/**
 * iomap_device_open_aio - a file or block device through O_DIRECT and libaio
 * @path:   regular file or block device
 * @oflags: as open(2): access mode, O_CREAT, O_EXCL, O_TRUNC; O_DIRECT and O_CLOEXEC are added
 * @mode:   permissions where it is created
 * @out:    gets the device with one reference
 *
 * Its alignment is what statx(STATX_DIOALIGN) says, or what the file system accepts where the kernel does not say.
 *
 * Context: any thread; sleeps on I/O.
 * Return:  0; or what open(2) says (-ENOENT, -EACCES, -EEXIST, …), -EISDIR (a directory), -ENODEV (fifo, socket, character
 *          device), -EOPNOTSUPP (O_DIRECT is not possible there), -EBUSY (O_TRUNC of a file that a cache has claimed),
 *          -EINVAL (NULL, other flags, O_TRUNC without write access), -ENOMEM, -EAGAIN (no libaio context, no thread).
 */
IOMAP_API int iomap_device_open_aio(const char *path, int oflags, mode_t mode, struct iomap_device **out);

/**
 * iomap_device_open_fd - the same on a descriptor that is open already
 * @fd:  open with O_DIRECT; duplicated, so it stays the caller's to close
 * @out: gets the device with one reference
 *
 * Context: any thread; sleeps on I/O.
 * Return:  0; or -EBADF (not a descriptor), -EINVAL (no O_DIRECT, O_APPEND, NULL), -EISDIR, -ENODEV, -EOPNOTSUPP as above, -ENOMEM.
 */
IOMAP_API int iomap_device_open_fd(int fd, struct iomap_device **out);

/* A device in memory. Zero means the default. */
struct iomap_mem_params {
	size_t   struct_size;                   /* sizeof(struct iomap_mem_params); 0 = the struct of version 0.1 */
	uint64_t size;                          /* bytes at first; the device grows and shrinks like a file */
	uint32_t block;                         /* info.block, default 512 */
	uint64_t latency_ns;                    /* each request takes at least this long, default 0 */
	uint64_t iops;                          /* most requests started per second, 0 = no limit */
	uint64_t bytes_per_second;              /* 0 = no limit */
	unsigned queue_depth;                   /* requests in flight; default 128 */
	/*
	 * Called for every request, flushes included, before it is carried out; from any thread. 0 = carry on, < 0 = fail with
	 * that -errno, > 0 = complete only so many bytes. It may add to *@delay_ns. A failed write changes nothing. May be NULL.
	 */
	int64_t (*fail)(void *fail_priv, const struct iomap_request *request, uint64_t *delay_ns);
	void    *fail_priv;
};

#define IOMAP_MEM_PARAMS_INIT { sizeof(struct iomap_mem_params), 0, 0, 0, 0, 0, 0, NULL, NULL }

/**
 * iomap_device_open_mem - a device in memory
 * @params: how it is to be, copied; NULL: an empty one with all defaults
 * @out:    gets the device with one reference
 *
 * Starts as zeros. Memory is malloc's and taken where something is written; the contents end with the device.
 *
 * Context: any thread.
 * Return:  0; or -EINVAL (@out NULL, bad block or struct_size), -EOPNOTSUPP (a field this version does not know), -ENOMEM.
 */
IOMAP_API int iomap_device_open_mem(const struct iomap_mem_params *params, struct iomap_device **out);

/* A token bucket. Zero means no limit. */
struct iomap_limit_params {
	size_t   struct_size;                   /* sizeof(struct iomap_limit_params); 0 = the struct of version 0.1 */
	uint64_t iops;                          /* I/Os per second, reads and writes together; flushes are free */
	uint64_t bytes_per_second;
	unsigned queue_depth;                   /* requests waiting or at the lower device, default 128, at most 65536 */
	uint64_t split_bytes;                   /* a request larger than this counts as several I/Os */
};

#define IOMAP_LIMIT_PARAMS_INIT { sizeof(struct iomap_limit_params), 0, 0, 0, 0 }

/**
 * iomap_device_open_limit - a rate limiter in front of another device
 * @lower:  any device; gets a reference, so the caller may close it right away
 * @params: the limits, copied; NULL: none yet
 * @out:    gets the device with one reference
 *
 * Behaves like a cloud volume: requests above the rate wait in its queue. Files are then opened on @out, not on @lower.
 *
 * Context: any thread.
 * Return:  0; or -EINVAL (@lower or @out NULL, bad struct_size), -EOPNOTSUPP (a field this version does not know), -ENOMEM,
 *          -EAGAIN (a thread could not be started).
 */
IOMAP_API int iomap_device_open_limit(struct iomap_device *lower, const struct iomap_limit_params *params,
				      struct iomap_device **out);

/**
 * iomap_device_set_limit - change or lift a limit while it works
 * @device: made by iomap_device_open_limit()
 * @params: the new limits, copied; NULL: no limit
 *
 * Requests that wait in the queue are judged anew.
 *
 * Context: any thread.
 * Return:  0; or -EINVAL (NULL, not a limit device, bad struct_size, queue_depth above 65536), -EOPNOTSUPP (a field this
 *          version does not know), -ENOMEM (a deeper queue). On error nothing has changed.
 */
IOMAP_API int iomap_device_set_limit(struct iomap_device *device, const struct iomap_limit_params *params);

#ifdef __cplusplus
}
#endif
#endif
