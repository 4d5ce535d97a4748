/*
 * params.h - params structs that may be older or newer than this library
 *
 * Every public params struct starts with `size_t struct_size`: what the caller was compiled with, 0 for version
 * 0.1. An older caller's missing fields read as zero; a newer caller may leave what this version does not know
 * at zero, nothing else.
 */
#ifndef IOMAP_PARAMS_H
#define IOMAP_PARAMS_H

#include <errno.h>
#include <stddef.h>
#include <string.h>

#define PARAMS_BYTES_MAX 4096

/*
 * Copies @from into @to, which has @known bytes; @v01 is the struct's size in version 0.1. 0; -EINVAL:
 * struct_size is no size; -EOPNOTSUPP: a field is set that this version does not have.
 */
static inline int params_copy(void *to, size_t known, const void *from, size_t v01)
{
	size_t size;

	memcpy(&size, from, sizeof(size));
	if (!size)
		size = v01;
	if (size < v01 || size > PARAMS_BYTES_MAX)
		return -EINVAL;
	for (size_t i = known; i < size; i++)
		if (((const unsigned char *)from)[i])
			return -EOPNOTSUPP;
	memset(to, 0, known);
	memcpy(to, from, size < known ? size : known);
	return 0;
}

#endif
