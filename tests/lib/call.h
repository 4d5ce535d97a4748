/*
 * call.h - one call on a file, made from a thread of its own
 *
 *	struct t_call c;
 *	t_call_read(&c, file, 4096, 0);         starts
 *	… t_call_done(&c) …
 *	n = t_call_wait(&c);                    its result; fails the test if the call does not return in 20 s
 *	… c.buf …
 *	t_call_free(&c);
 */
#ifndef TESTS_CALL_H
#define TESTS_CALL_H

#include <pthread.h>
#include <stdatomic.h>
#include <iomap/iomap.h>

struct t_call {
	pthread_t thread;
	struct iomap_file *file;
	int64_t (*fn)(void *arg);
	void *arg;
	int op;
	unsigned char *buf;
	size_t len;
	off_t pos;
	int64_t result;
	uint64_t took_ns;
	_Atomic bool started, done;
	bool joined;
};

void t_call_read(struct t_call *call, struct iomap_file *file, size_t len, off_t pos);
void t_call_write(struct t_call *call, struct iomap_file *file, int byte, size_t len, off_t pos);
void t_call_fsync(struct t_call *call, struct iomap_file *file);
void t_call_truncate(struct t_call *call, struct iomap_file *file, off_t size);
void t_call_fn(struct t_call *call, int64_t (*fn)(void *arg), void *arg);

bool t_call_done(struct t_call *call);
int64_t t_call_wait(struct t_call *call);
void t_call_free(struct t_call *call);

/* n threads of fn(&args[i * size]), all of which end by themselves. */
void t_call_all(void *(*fn)(void *arg), void *args, size_t size, unsigned n);

#endif
