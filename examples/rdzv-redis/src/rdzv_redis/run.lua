-- What can be done with one run, each in one step. Results are arrays, the first element says how it went:
-- OK (with the revision and its identity), GONE (this session has ended: LOST, BACK or OVER), NO (a guard has changed),
-- COMPACTED, STALE.
--
-- KEYS   state     hash: epoch, rev, last (the identity of that change), clock, seen, ttl, patience, size (of values)
--        values    hash: key -> "REVISION OWNER VALUE"; the owner is a session, or "-"
--        names     sorted set of the keys, to find them by prefix
--        events    stream: REVISION-0 -> k, v (none if the key has gone); or ttl, for those who keep alive; then
--                  i, the identity of the change, and p, that of the one before
--        sessions  sorted set: session -> when it ends, by the run's clock
--        owners    sorted set of "SESSION KEY": what goes with a session
--        answers   hash: session -> its ttl, the number of its last request, and the answer to it
-- ARGV   operation, session, epoch (what the session knows this run's data by), the last revision that it knows, the
--        identity of that, and more

local STATE, VALUES, NAMES, EVENTS, SESSIONS, OWNERS, ANSWERS = unpack(KEYS)
local operation, me, epoch_of_mine = ARGV[1], ARGV[2], ARGV[3]
local KEPT_EVENTS = 10000 -- and up to a hundred more
local LEAST_EXPIRY = 600000
local AT_ONCE = 1000 -- arguments that Lua can unpack

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local held = redis.call('HMGET', STATE, 'epoch', 'rev', 'clock', 'seen', 'ttl', 'patience', 'last', 'size')
local epoch = held[1]
local rev, clock, seen = tonumber(held[2] or 0), tonumber(held[3] or 0), tonumber(held[4] or now)
local shortest, patience = tonumber(held[5] or 0), tonumber(held[6] or 0)
local last, size = held[7], tonumber(held[8] or 0)

local function text(number)
  return string.format('%.0f', number)
end

local function save()
  redis.call('HSET', STATE, 'epoch', epoch, 'rev', text(rev), 'last', last, 'clock', text(clock), 'seen', text(seen),
    'ttl', text(shortest), 'patience', text(patience), 'size', text(size))
  for _, key in ipairs(KEYS) do -- nobody clears up after nodes that were all killed
    redis.call('PEXPIRE', key, text(LEAST_EXPIRY + 2 * patience))
  end
end

-- A revision alone says little: when Redis has lost its last changes, others get their numbers. The identity of a change
-- is made of the one before as well, so that two histories that differ anywhere differ in each change from there on.
local function announce(...)
  local before, fields = last, { ... }
  rev = rev + 1
  last = string.sub(redis.sha1hex(before .. ' ' .. me .. ' ' .. time[1] .. ' ' .. time[2]), 1, 12)
  for _, each in ipairs({ 'i', last, 'p', before }) do
    fields[#fields + 1] = each
  end
  redis.call('XADD', EVENTS, 'MAXLEN', '~', KEPT_EVENTS, text(rev) .. '-0', unpack(fields))
end

local function disown(key)
  local packed = redis.call('HGET', VALUES, key)
  local owner = packed and string.match(packed, '^%d+ (%S+) ')
  if owner and owner ~= '-' then
    redis.call('ZREM', OWNERS, owner .. ' ' .. key)
  end
  return packed
end

local function write(key, value, owner)
  if not disown(key) then
    size = size + 1
  end
  announce('k', key, 'v', value)
  redis.call('HSET', VALUES, key, text(rev) .. ' ' .. owner .. ' ' .. value)
  redis.call('ZADD', NAMES, 0, key)
  if owner ~= '-' then
    redis.call('ZADD', OWNERS, 0, owner .. ' ' .. key)
  end
end

local function delete(key)
  if disown(key) then
    announce('k', key)
    redis.call('HDEL', VALUES, key)
    redis.call('ZREM', NAMES, key)
    size = size - 1
  end
end

local function revision_of(key)
  local packed = redis.call('HGET', VALUES, key)
  return packed and string.match(packed, '^%d+') or '0'
end

-- The run's clock is Redis' own, but it stands while nobody is heard: then Redis itself was away, or stood still, or its
-- clock was set. So nobody is taken for lost who only could not be heard.
local function advance()
  local gap = now - seen
  if gap > 0 and gap <= shortest / 2 then
    clock = clock + gap
  end
  seen = now
end

local function finish(session)
  for _, owned in ipairs(redis.call('ZRANGEBYLEX', OWNERS, '[' .. session .. ' ', '(' .. session .. '!')) do
    delete(string.sub(owned, #session + 2))
  end
  redis.call('ZREM', SESSIONS, session)
  redis.call('HDEL', ANSWERS, session)
end

local function reap()
  for _, session in ipairs(redis.call('ZRANGEBYSCORE', SESSIONS, '-inf', '(' .. text(clock))) do
    finish(session)
  end
end

-- Redis has thrown keys away to make room, or somebody has deleted some.
local function damaged()
  return redis.call('HLEN', VALUES) ~= size or redis.call('ZCARD', NAMES) ~= size
end

-- Not the history that this session knows. What is so old that the stream has forgotten it cannot be compared; then it
-- is the session's reader that has missed something, and knows it.
local function is_another_history(known, identity)
  if known >= rev then
    return known > rev or identity ~= last
  end
  local entry = redis.call('XRANGE', EVENTS, text(known) .. '-0', text(known) .. '-0')[1]
  if not entry then
    return false
  end
  local fields = entry[2]
  for index = 1, #fields, 2 do
    if fields[index] == 'i' then
      return fields[index + 1] ~= identity
    end
  end
  return true
end

local function clear()
  redis.call('DEL', unpack(KEYS))
end

if operation == 'open' then
  local ttl, mine = tonumber(ARGV[6]), tonumber(ARGV[7])
  if not epoch or redis.call('HEXISTS', ANSWERS, me) == 0 then -- else it asks again
    -- its nodes have given up by themselves by then, or all have left, or are told that data are lost
    if not epoch or now - seen > patience + shortest or redis.call('ZCARD', SESSIONS) == 0 or damaged() then
      clear() -- also what is left where only the state has gone
      epoch, rev, clock, seen, shortest, patience = epoch_of_mine, 0, 0, now, 0, 0
      last, size = epoch, 0
    end
    advance()
    reap()
    if shortest == 0 or ttl < shortest then
      shortest = ttl
      announce('ttl', text(ttl))
    end
    patience = math.max(patience, mine)
    redis.call('ZADD', SESSIONS, text(clock + ttl), me)
    redis.call('HSET', ANSWERS, me, cmsgpack.pack({ ttl, 0, {} }))
    save()
  end
  return { 'OK', text(rev), last, epoch, text(shortest) }
end

local packed = redis.call('HGET', ANSWERS, me)
if epoch ~= epoch_of_mine then
  return { 'GONE', 'LOST' }
elseif operation ~= 'close' and (is_another_history(tonumber(ARGV[4]), ARGV[5]) or damaged()) then
  return { 'GONE', 'BACK' }
elseif not packed then
  return { 'GONE', 'OVER' }
end
local record = cmsgpack.unpack(packed) -- ttl, number, answer

if operation == 'keep' then
  advance()
  redis.call('ZADD', SESSIONS, text(clock + record[1]), me)
  reap()
  save()
  return { 'OK', text(rev), last, text(shortest) }
end

if operation == 'close' then
  finish(me)
  advance()
  reap()
  if redis.call('ZCARD', SESSIONS) == 0 then
    clear()
  else
    save()
  end
  return { 'OK', text(rev), last }
end

if operation == 'evict' then -- end the session that has written this key: its process is gone
  local value = redis.call('HGET', VALUES, ARGV[6])
  local owner = value and string.match(value, '^%d+ (%S+) ')
  if not owner or owner == '-' or owner == me then
    return { 'OK', text(rev), last, '0' }
  end
  finish(owner)
  save()
  return { 'OK', text(rev), last, '1' }
end

if operation == 'list' then
  local prefix = ARGV[6]
  local names = redis.call('ZRANGEBYLEX', NAMES, '[' .. prefix, '(' .. prefix .. '\255')
  local answer = { 'OK', text(rev), last }
  for first = 1, #names, AT_ONCE do
    local values = redis.call('HMGET', VALUES, unpack(names, first, math.min(first + AT_ONCE - 1, #names)))
    for index, value in ipairs(values) do
      if not value then
        return { 'GONE', 'BACK' }
      end
      answer[#answer + 1] = names[first + index - 1]
      answer[#answer + 1] = value
    end
  end
  return answer
end

if operation == 'since' then -- what has happened to keys with that prefix
  local prefix, after = ARGV[6], tonumber(ARGV[7])
  local first = redis.call('XRANGE', EVENTS, '-', '+', 'COUNT', 1)[1]
  local known = first and tonumber(string.match(first[1], '^%d+')) or rev + 1
  if after + 1 < known and after < rev then
    return { 'COMPACTED', text(known) }
  end
  local answer = { 'OK', text(rev), last }
  for _, entry in ipairs(redis.call('XRANGE', EVENTS, '(' .. text(after) .. '-0', '+')) do
    local fields = entry[2]
    if fields[1] == 'k' and string.sub(fields[2], 1, #prefix) == prefix then
      answer[#answer + 1] = entry
    end
  end
  return answer
end

-- Requests that change something are numbered: one that is repeated gets the answer of the first time, and one that
-- comes late, after a later one, does nothing.
local number, guard, guarded, owner = tonumber(ARGV[6]), ARGV[7], ARGV[8], ARGV[9]
if number == record[2] then
  return record[3]
elseif number < record[2] then
  return { 'STALE' }
end

local answer
if guarded ~= '' and revision_of(guard) ~= guarded then
  answer = { 'NO' }
elseif operation == 'create' then
  local there = redis.call('HGET', VALUES, ARGV[10])
  if not there then
    write(ARGV[10], ARGV[11], owner)
  end
  answer = { 'OK', text(rev), last, there or '' }
elseif operation == 'put' then
  for index = 10, #ARGV, 2 do
    write(ARGV[index], ARGV[index + 1], owner)
  end
  answer = { 'OK', text(rev), last }
elseif operation == 'delete' then
  for index = 10, #ARGV do
    delete(ARGV[index])
  end
  answer = { 'OK', text(rev), last }
else
  return redis.error_reply('unknown operation ' .. operation)
end
redis.call('HSET', ANSWERS, me, cmsgpack.pack({ record[1], number, answer }))
save()
return answer
