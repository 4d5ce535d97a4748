/*
 * device-io.h - requests to a device, made and waited for by a test
 */
#ifndef TESTS_DEVICE_IO_H
#define TESTS_DEVICE_IO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "device.h"

/* One request, from t_io_start() to t_io_wait(). */
struct t_io {
	struct iomap_request req;
	struct iovec one;
	struct mutex lock;
	struct cond cond;
	bool done;                      /* under lock */
	uint64_t seq;                   /* place in the order of completions, from 1; valid once done */
	uint64_t size_seen;             /* device_size() when done() was called */
};

void t_io_init(struct t_io *io, unsigned op, uint64_t pos, const struct iovec *iov, int iovcnt);
void t_io_init1(struct t_io *io, unsigned op, uint64_t pos, void *buf, size_t len);
void t_io_start(struct t_io *io, struct iomap_device *dev);     /* offers it until it is taken */
bool t_io_offer(struct t_io *io, struct iomap_device *dev);     /* offers it once */
bool t_io_is_done(struct t_io *io);
int64_t t_io_wait(struct t_io *io);                             /* its result; the struct is free again */

/* Start and wait. */
int64_t t_dev_read(struct iomap_device *dev, uint64_t pos, void *buf, size_t len);
int64_t t_dev_write(struct iomap_device *dev, uint64_t pos, const void *buf, size_t len);
int64_t t_dev_flush(struct iomap_device *dev);

struct iomap_device_stat t_dev_stat(struct iomap_device *dev);

#endif
