/*
 * call.c - one call on a file, made from a thread of its own
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include "call.h"
#include "run.h"

enum { CALL_READ, CALL_WRITE, CALL_FSYNC, CALL_TRUNCATE, CALL_FN };

static void *run(void *arg)
{
	struct t_call *call = arg;
	uint64_t start = t_run_now_ns();

	atomic_store(&call->started, true);
	switch (call->op) {
	case CALL_READ: call->result = iomap_pread(call->file, call->buf, call->len, call->pos); break;
	case CALL_WRITE: call->result = iomap_pwrite(call->file, call->buf, call->len, call->pos); break;
	case CALL_FSYNC: call->result = iomap_fsync(call->file); break;
	case CALL_TRUNCATE: call->result = iomap_ftruncate(call->file, call->pos); break;
	default: call->result = call->fn(call->arg);
	}
	call->took_ns = t_run_now_ns() - start;
	atomic_store(&call->done, true);
	return NULL;
}

/* Returns when the thread is about to make the call. */
static void start(struct t_call *call)
{
	CHECK_EQ(pthread_create(&call->thread, NULL, run, call), 0);
	CHECK(T_WAIT(atomic_load(&call->started), 10000));
}

static void set_up(struct t_call *call, int op, struct iomap_file *file, size_t len, off_t pos)
{
	memset(call, 0, sizeof(*call));
	call->op = op;
	call->file = file;
	call->len = len;
	call->pos = pos;
	if (len) {
		call->buf = malloc(len);
		CHECK(call->buf);
	}
}

void t_call_read(struct t_call *call, struct iomap_file *file, size_t len, off_t pos)
{
	set_up(call, CALL_READ, file, len, pos);
	memset(call->buf, 0xEE, len);
	start(call);
}

void t_call_write(struct t_call *call, struct iomap_file *file, int byte, size_t len, off_t pos)
{
	set_up(call, CALL_WRITE, file, len, pos);
	memset(call->buf, byte, len);
	start(call);
}

void t_call_fsync(struct t_call *call, struct iomap_file *file)
{
	set_up(call, CALL_FSYNC, file, 0, 0);
	start(call);
}

void t_call_truncate(struct t_call *call, struct iomap_file *file, off_t size)
{
	set_up(call, CALL_TRUNCATE, file, 0, size);
	start(call);
}

void t_call_fn(struct t_call *call, int64_t (*fn)(void *arg), void *arg)
{
	set_up(call, CALL_FN, NULL, 0, 0);
	call->fn = fn;
	call->arg = arg;
	start(call);
}

bool t_call_done(struct t_call *call)
{
	return atomic_load(&call->done);
}

int64_t t_call_wait(struct t_call *call)
{
	if (!call->joined) {
		CHECK_MSG(T_WAIT(t_call_done(call), 20000), "a call does not return");
		pthread_join(call->thread, NULL);
		call->joined = true;
	}
	return call->result;
}

void t_call_free(struct t_call *call)
{
	t_call_wait(call);
	free(call->buf);
	call->buf = NULL;
}

void t_call_all(void *(*fn)(void *arg), void *args, size_t size, unsigned n)
{
	pthread_t threads[64];

	CHECK_LE(n, 64);
	for (unsigned i = 0; i < n; i++)
		CHECK_EQ(pthread_create(&threads[i], NULL, fn, (char *)args + i * size), 0);
	for (unsigned i = 0; i < n; i++)
		pthread_join(threads[i], NULL);
}
