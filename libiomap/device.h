/*
 * device.h - a block device as the library sees it (the public face is <iomap/device.h>)
 *
 * All I/O of the library goes through the wrappers below: they count, check alignment in debug builds, and call the backend.
 */
#ifndef IOMAP_DEVICE_PRIVATE_H
#define IOMAP_DEVICE_PRIVATE_H

#include <iomap/device.h>
#include <iomap/stat.h>
#include "atomic.h"
#include "platform.h"

struct device_stats {
	_Atomic uint64_t read_bytes, written_bytes, read_ios, write_ios, flushes, io_errors, io_retries, io_merged;
};

/* What only a device on a kernel file can do; NULL for the others. */
struct device_file_ops {
	int (*fd)(struct iomap_device *dev);                            /* the direct descriptor */
	int (*fstat)(struct iomap_device *dev, struct stat *st);
	int (*make_writable)(struct iomap_device *dev, const char *path);       /* adds a read-write descriptor to a read-only one */
	int (*claim)(struct iomap_device *dev);                         /* an OFD lock on one byte far out, -EBUSY if another has it */
	int (*fsync)(struct iomap_device *dev);                         /* metadata too, fsync(2) */
};

struct iomap_device {
	const struct iomap_device_ops *ops;
	void *priv;
	const struct device_file_ops *file;
	struct iomap_device_info info;          /* size: as opened; the current size is device_size() */
	_Atomic uint64_t size;                  /* after completed extending writes and set_size */
	_Atomic uint32_t refs;
	_Atomic bool size_unsure;               /* an extending write failed: there may be more than size says, until set_size */
	struct iomap_device *below;             /* a stacked device has the size of this one at all times; NULL: its own, below */
	_Atomic(void *) owner;                  /* the cache that opened a file on it first, or NULL */
	struct device_stats stats;
};

struct iomap_device *device_get(struct iomap_device *dev);
void device_put(struct iomap_device *dev);                      /* the last one destroys it; sleeps */
int  device_claim(struct iomap_device *dev, void *owner);       /* -EBUSY: it, or one below it, serves another cache */
void device_unclaim(struct iomap_device *dev, void *owner);     /* when the owner goes; nothing if it is another's */

/*
 * Returns how many it took, from the front, never an error; each one taken gets its done() exactly once, perhaps before this
 * returns. A request that the backend refuses for good counts as taken and is completed with the error. Where it takes
 * fewer, offer the rest again after a completion: own ones, or (kernel files) those of any device on the same queue; or
 * after a while, as nothing need be in flight. The caller's reference lasts until this returns, whatever done() does.
 */
int  device_submit(struct iomap_device *dev, struct iomap_request **reqs, unsigned n);
/*
 * Durable: everything whose done() ran before this call. done() as above; a negative return means it was not
 * taken.
 */
int  device_flush(struct iomap_device *dev, struct iomap_request *req);
int  device_set_size(struct iomap_device *dev, uint64_t size);  /* -EOPNOTSUPP: fixed size */
int  device_allocate(struct iomap_device *dev, uint64_t pos, uint64_t len, int mode);   /* -EOPNOTSUPP: cannot */
int  device_seek(struct iomap_device *dev, uint64_t pos, int whence, uint64_t *out);
uint64_t request_bytes(const struct iomap_request *req);        /* the sum over its iov */

/* The device at the bottom of a stack, which has the size. */
static inline const struct iomap_device *device_bottom(const struct iomap_device *dev)
{
	while (dev->below)
		dev = dev->below;
	return dev;
}
static inline uint64_t device_size(const struct iomap_device *dev) { return load_acquire(&device_bottom(dev)->size); }
static inline bool device_size_unsure(const struct iomap_device *dev) { return load_acquire(&device_bottom(dev)->size_unsure); }
static inline bool device_fixed_size(const struct iomap_device *dev) { return !device_bottom(dev)->ops->set_size; }

/*
 * Kernel files share the queue of their backing device: one libaio context, one completion thread, one worker for
 * what blocks.
 */
struct aio_queue;
#define AIO_QUEUE_DEPTH_MAX 65536U
int  aio_queue_create(unsigned depth, struct aio_queue **out);
struct aio_queue *aio_queue_get(struct aio_queue *q);
void aio_queue_put(struct aio_queue *q);
/* @fd is an open O_DIRECT descriptor of a regular file or block device and belongs to the device on success. */
int  device_aio_create(struct aio_queue *q, int fd, struct iomap_device **out);

#endif
