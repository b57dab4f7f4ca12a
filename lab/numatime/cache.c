// SPDX-License-Identifier: GPL-2.0-or-later
/* Set-associative caches. */
#include <stdlib.h>

#include "numatime.h"

void cache_init(struct cache *cache, uint32_t bytes, uint32_t ways)
{
	uint32_t sets = bytes / LINE_BYTES / ways;

	cache->ways = ways;
	cache->set_mask = sets - 1;
	cache->tag = calloc((size_t)sets * ways, sizeof *cache->tag);
	if (!cache->tag)
		give_up(EXIT_UNSUITABLE, "no memory for the caches");
}

static uint32_t *set_of(const struct cache *cache, uint64_t line)
{
	return cache->tag + (size_t)(line & cache->set_mask) * cache->ways;
}

/*
 * Whether the line was there. It is now, as the most recent one; the line that gave way for it, or
 * NO_LINE.
 */
bool cache_touch(struct cache *cache, uint64_t line, uint64_t *evicted)
{
	uint32_t *set = set_of(cache, line);
	uint32_t tag = (uint32_t)line + 1;
	unsigned way = 0;
	bool hit;

	while (way < cache->ways - 1 && set[way] != tag)
		way++;
	hit = set[way] == tag;
	*evicted = hit || !set[way] ? NO_LINE : (uint64_t)set[way] - 1;
	for (; way > 0; way--)
		set[way] = set[way - 1];
	set[0] = tag;
	return hit;
}

bool cache_holds(const struct cache *cache, uint64_t line)
{
	const uint32_t *set = set_of(cache, line);

	for (unsigned way = 0; way < cache->ways; way++)
		if (set[way] == (uint32_t)line + 1)
			return true;
	return false;
}

void cache_remove(struct cache *cache, uint64_t line)
{
	uint32_t *set = set_of(cache, line);
	unsigned way = 0;

	while (way < cache->ways && set[way] != (uint32_t)line + 1)
		way++;
	if (way == cache->ways)
		return;
	for (; way < cache->ways - 1; way++)
		set[way] = set[way + 1];
	set[way] = 0;
}
