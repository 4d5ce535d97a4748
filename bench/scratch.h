/*
 * scratch.h - a large temporary file that O_DIRECT works on and that nothing can leave behind
 *
 * The file has no name any more when scratch_create() returns: however the program ends, its space is free
 * again. It is opened by the path scratch.path, which leads to it for as long as the struct lives.
 */
#ifndef BENCH_SCRATCH_H
#define BENCH_SCRATCH_H

#include <stdint.h>

struct scratch {
	int fd;                         /* buffered, read-write */
	uint64_t size;
	uint32_t block;                 /* positions and lengths that O_DIRECT must accept */
	char dir[4096];                 /* where it is */
	char fs_type[64];               /* "ext4", or "unknown" */
	char path[64];                  /* opens it again, with any flags */
};

/*
 * Makes the file in @dir, or, if @dir is NULL, in the first of several likely places where O_DIRECT works in units of
 * @block and @size bytes are free. Every byte of it is written and on the device, none of it in the kernel's cache.
 * @progress, if not NULL, is called now and then with the bytes written so far. Returns 0, or -1 after complaining.
 */
int scratch_create(struct scratch *s, const char *dir, uint64_t size, uint32_t block,
		   void (*progress)(uint64_t done, uint64_t size));
void scratch_destroy(struct scratch *s);

#endif
