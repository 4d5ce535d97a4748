/*
 * heap.c - memory of a world: one area at a fixed address, dropped as a whole
 *
 * malloc() and its like are wrapped at link time. Inside a world they take from here, so addresses are the same in every run of a
 * seed, nothing survives the world, and an allocation can be made to fail. Nothing is given out twice in one world: what was
 * freed is filled with a pattern, so that a use after free reads nonsense at once.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "sched.h"

#define AREA_BASE   UINT64_C(0x520000000000)
#define AREA_BYTES  (UINT64_C(1) << 30)
#define MADE        0xa5
#define FREED       0xd7
#define FREED_MOST  16384               /* of a large piece only the front is filled */
#define HEADER      16                  /* before each piece: its size */

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t size);
int   __real_posix_memalign(void **out, size_t align, size_t size);
void  __real_free(void *p);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t size);
int   __wrap_posix_memalign(void **out, size_t align, size_t size);
void  __wrap_free(void *p);

bool heap_is_on;
static char *area;
static uint64_t at, used;

void heap_reset(void)
{
	if (!area) {
		area = mmap((void *)AREA_BASE, AREA_BYTES, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
		if (area == MAP_FAILED) {
			perror("iomap-sim: no memory for the heap");
			exit(2);
		}
	}
	at = used = 0;
}

bool heap_owns(const void *p) { return area && (const char *)p >= area && (const char *)p < area + AREA_BYTES; }
uint64_t heap_used(void) { return used; }

void *heap_alloc(size_t size, size_t align)
{
	uint64_t start = (at + HEADER + align - 1) & ~(uint64_t)(align - 1);

	if (size > AREA_BYTES || start + size > AREA_BYTES)
		return NULL;
	at = start + size;
	used += size;
	memcpy(area + start - sizeof(uint64_t), &(uint64_t){ size }, sizeof(uint64_t));
	return area + start;
}

void heap_free(void *p)
{
	uint64_t size;

	memcpy(&size, (char *)p - sizeof(size), sizeof(size));
	if (size == UINT64_MAX)
		sim_fail("%p is freed twice", p);
	used -= size;
	memset(p, FREED, size < FREED_MOST ? size : FREED_MOST);
	memcpy((char *)p - sizeof(size), &(uint64_t){ UINT64_MAX }, sizeof(size));
}

static void *take(size_t size, size_t align, int fill)
{
	void *p;

	sim_point();
	if (sim_fault(SIM_FAULT_ALLOC))
		return NULL;
	p = heap_alloc(size ? size : 1, align);
	if (p)
		memset(p, fill, size);
	return p;
}

void *__wrap_malloc(size_t size) { return heap_is_on ? take(size, 16, MADE) : __real_malloc(size); }

void *__wrap_calloc(size_t n, size_t size)
{
	if (!heap_is_on)
		return __real_calloc(n, size);
	return size && n > AREA_BYTES / size ? NULL : take(n * size, 16, 0);
}

void *__wrap_realloc(void *p, size_t size)
{
	uint64_t old;
	void *to;

	if (!heap_is_on || (p && !heap_owns(p)))
		return __real_realloc(p, size);
	to = take(size, 16, MADE);
	if (to && p) {
		memcpy(&old, (char *)p - sizeof(old), sizeof(old));
		memcpy(to, p, old < size ? old : size);
		heap_free(p);
	}
	return to;
}

int __wrap_posix_memalign(void **out, size_t align, size_t size)
{
	if (!heap_is_on)
		return __real_posix_memalign(out, align, size);
	*out = take(size, align, MADE);
	return *out ? 0 : ENOMEM;
}

void __wrap_free(void *p)
{
	if (!heap_owns(p))
		__real_free(p);
	else if (heap_is_on)
		heap_free(p);
}
