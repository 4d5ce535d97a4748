/*
 * device-io.c - see device-io.h
 */
#include "device-io.h"
#include "atomic.h"
#include "util.h"

static _Atomic uint64_t completions;

static void io_done(struct iomap_request *req)
{
	struct t_io *io = container_of(req, struct t_io, req);

	mutex_lock(&io->lock);
	io->done = true;
	io->seq = add_relaxed(&completions, 1) + 1;
	io->size_seen = device_size(req->device);
	cond_broadcast(&io->cond);
	mutex_unlock(&io->lock);
}

void t_io_init(struct t_io *io, unsigned op, uint64_t pos, const struct iovec *iov, int iovcnt)
{
	*io = (struct t_io){ .req = { .op = op, .pos = pos, .iov = iov, .iovcnt = iovcnt, .done = io_done } };
	mutex_init(&io->lock, LOCK_WAIT);
	cond_init(&io->cond);
}

void t_io_init1(struct t_io *io, unsigned op, uint64_t pos, void *buf, size_t len)
{
	t_io_init(io, op, pos, &io->one, 1);
	io->one = (struct iovec){ buf, len };
}

bool t_io_offer(struct t_io *io, struct iomap_device *dev)
{
	struct iomap_request *req = &io->req;

	return device_submit(dev, &req, 1) == 1;
}

void t_io_start(struct t_io *io, struct iomap_device *dev)
{
	while (!t_io_offer(io, dev))
		plat_sleep_ns(NS_PER_MS / 4);
}

bool t_io_is_done(struct t_io *io)
{
	mutex_lock(&io->lock);
	bool done = io->done;

	mutex_unlock(&io->lock);
	return done;
}

int64_t t_io_wait(struct t_io *io)
{
	mutex_lock(&io->lock);
	while (!io->done)
		cond_wait(&io->cond, &io->lock);
	mutex_unlock(&io->lock);
	cond_fini(&io->cond);
	mutex_fini(&io->lock);
	return io->req.result;
}

static int64_t run(struct iomap_device *dev, unsigned op, uint64_t pos, void *buf, size_t len)
{
	struct t_io io;

	t_io_init1(&io, op, pos, buf, len);
	t_io_start(&io, dev);
	return t_io_wait(&io);
}

int64_t t_dev_read(struct iomap_device *dev, uint64_t pos, void *buf, size_t len)
{
	return run(dev, IOMAP_REQ_READ, pos, buf, len);
}

int64_t t_dev_write(struct iomap_device *dev, uint64_t pos, const void *buf, size_t len)
{
	return run(dev, IOMAP_REQ_WRITE, pos, (void *)(uintptr_t)buf, len);
}

int64_t t_dev_flush(struct iomap_device *dev)
{
	struct t_io io;
	int ret;

	t_io_init(&io, IOMAP_REQ_FLUSH, 0, NULL, 0);
	ret = device_flush(dev, &io.req);
	if (ret < 0)
		return ret;
	return t_io_wait(&io);
}

struct iomap_device_stat t_dev_stat(struct iomap_device *dev)
{
	struct iomap_device_stat st = { 0 };

	iomap_device_stat(dev, &st, sizeof(st));
	return st;
}
