-- The shared counters of several gateways: one script, which Redis runs alone, so
-- that a decision over several counters is one step. docs/0024-redis.md has the why.
--
-- KEYS: the store's hash, the replicas' hash, the calling replica's record, then
-- one hash a counter. All share a hash tag. ARGV begins with the operation, the
-- epoch and the replica's id as the caller knows them, how long a replica may be
-- silent (ms) and what part of a limit replicas may lease. The answer is one string of
-- words.

local op, epoch, id = ARGV[1], ARGV[2], ARGV[3]
local dead, share = tonumber(ARGV[4]), tonumber(ARGV[5])
local floor, min, max = math.floor, math.min, math.max

-- num renders an integer in full; Lua's own conversion keeps 14 digits.
local function num(x) return string.format('%.0f', x) end

-- div is the integer quotient and remainder of integers below 2^53.
local function div(a, b)
  local q = floor(a / b)
  local r = a - q * b
  if r < 0 then return q - 1, r + b end
  if r >= b then return q + 1, r - b end
  return q, r
end

-- Time. raw is the server's clock. axis follows it and never runs back: a step
-- back of the clock stops it for no longer than the call that sees it.
local clock = redis.call('TIME')
local raw = tonumber(clock[1]) * 1000 + floor(tonumber(clock[2]) / 1000)
local store = redis.call('HMGET', KEYS[1], 'epoch', 'raw', 'axis', 'turn')
local axis = raw
if store[2] then axis = tonumber(store[3]) + max(0, raw - tonumber(store[2])) end
-- turn numbers the runs, so that a caller can tell an answer that was overtaken.
local turn = (tonumber(store[4]) or 0) + 1
redis.call('HSET', KEYS[1], 'raw', num(raw), 'axis', num(axis), 'turn', num(turn))

-- Replicas: who was heard of lately, and who is still counted as alive.
local alive, near = {}, 0
local list = redis.call('HGETALL', KEYS[2])
for i = 1, #list, 2 do
  local silent = axis - tonumber(list[i + 1])
  if silent > dead then
    redis.call('HDEL', KEYS[2], list[i])
  else
    alive[list[i]] = true
    if silent <= 10000 then near = near + 1 end
  end
end
near = max(near, 1)

if op == 'join' then
  local e = store[1]
  if not e then
    e = ARGV[6]
    redis.call('HSET', KEYS[1], 'epoch', e)
  end
  redis.call('HSET', KEYS[2], id, num(axis))
  return 'joined ' .. e
end
if store[1] ~= epoch then return 'epoch' end
if not alive[id] then return 'gone' end
if op == 'leave' then
  redis.call('HDEL', KEYS[2], id)
  redis.call('DEL', KEYS[3])
  return 'left'
end

-- Calendar. Days since 1970 of the first day of month m (0 is January 1970), and back.
local function monthStart(m)
  local y, mon = 1970 + floor(m / 12), m % 12
  local shifted = mon < 2 and y - 1 or y
  local era = floor(shifted / 400)
  local yoe = shifted - era * 400
  local doy = floor((153 * ((mon + 10) % 12) + 2) / 5)
  return era * 146097 + yoe * 365 + floor(yoe / 4) - floor(yoe / 100) + doy - 719468
end

local function monthOf(day)
  local m = floor(day / 30.436875)
  while monthStart(m + 1) <= day do m = m + 1 end
  while monthStart(m) > day do m = m - 1 end
  return m
end

local function periodOf(kind)
  local day = floor(raw / 86400000)
  if kind == 'day' then return day end
  return monthOf(day)
end

local function periodEnd(kind, p)
  if kind == 'day' then return (p + 1) * 86400000 end
  return monthStart(p + 1) * 86400000
end

-- refill returns level and fraction after dt ms at limit a window. The fraction is
-- in 1/window of a token, so that nothing is lost.
local function refill(level, frac, limit, window, dt)
  local whole, rest = div(dt, window)
  local q, r = div(limit, window)
  local add
  add, frac = div(r * rest + frac, window)
  return level + whole * limit + q * rest + add, frac
end

-- trim keeps level + what may come back + what is leased <= limit. Where the refill
-- would break that, the oldest entry loses what it may give back.
local function trim(c)
  local room = c.limit - c.sum
  if c.level >= room then c.level, c.frac = min(c.level, room), 0 end
  local over = c.level - room
  for _, e in ipairs(c.entries) do over = over + e.r end
  if over < 0 or over == 0 and c.frac <= c.lost then return end
  while c.entries[1] do
    local e = c.entries[1]
    if over < e.r then
      e.r, e.cut, c.lost = e.r - over, 1, c.frac
      return
    end
    over, c.lost = over - e.r, 0
    table.remove(c.entries, 1)
  end
end

-- load reads a counter and brings it to now, under the limit of this call. What a
-- replica has leased that is not alive any more goes back: slots are freed, and
-- what it had reserved stays charged.
local function load(key, kind, limit, window)
  local c = {key = key, kind = kind, limit = limit, window = window, held = {}, sum = 0}
  local f, gone = {}, 0
  local all = redis.call('HGETALL', key)
  for i = 1, #all, 2 do
    local name, v = all[i], tonumber(all[i + 1])
    if string.sub(name, 1, 2) ~= 'h:' then
      f[name] = v
    elseif alive[string.sub(name, 3)] then
      c.held[string.sub(name, 3)] = v
      c.sum = c.sum + v
    else
      gone = gone + v
      redis.call('HDEL', key, name)
    end
  end
  if kind == 'slots' then return c end
  if kind == 'bucket' then
    c.level, c.frac, c.lost, c.last = f.l or limit, f.f or 0, f.x or 0, f.n or 0
    c.entries = {}
    if f.i1 then c.entries[1] = {i = f.i1, r = f.r1, o = f.o1, cut = f.c1} end
    if f.i2 then c.entries[2] = {i = f.i2, r = f.r2, o = f.o2, cut = f.c2} end
    if f.t then c.level, c.frac = refill(c.level, c.frac, f.m, window, max(0, axis - f.t)) end
    c.level = c.level + gone
    trim(c)
    return c
  end
  c.period, c.used = periodOf(kind), 0
  if f.p and f.p >= c.period then
    c.period, c.used = f.p, max(0, f.u - gone)
  elseif f.p then
    redis.call('DEL', key)
    c.held, c.sum = {}, 0
  end
  return c
end

local function avail(c)
  if c.kind == 'slots' then return c.limit - c.sum end
  if c.kind == 'bucket' then return c.level end
  return c.limit - c.used
end

-- rest is the time left in a calendar window.
local function rest(c)
  if not c.period then return 0 end
  return max(0, periodEnd(c.kind, c.period) - raw)
end

local function wait(c, need)
  if need <= avail(c) then return 0 end
  if c.kind == 'slots' then return 1000 end
  if c.period then return rest(c) end
  if c.limit <= 0 then return -1 end
  return max(1, math.ceil(((need - c.level) * c.window - c.frac) / c.limit))
end

-- move gives n to (or with n < 0 takes it from) what the calling replica has leased.
local function move(c, n)
  c.held[id] = (c.held[id] or 0) + n
  c.sum = c.sum + n
end

-- charge takes n from the counter, or gives it back.
local function charge(c, n)
  if c.kind == 'bucket' then
    c.level = c.level - n
  elseif c.period then
    c.used = max(0, c.used + n)
  end
end

local function grant(c, n)
  charge(c, n)
  move(c, n)
end

-- spare is how much of more a replica gets beyond what it needs: never the last of
-- a counter, so that little is stranded where others can't use it. owed is what the
-- replica is about to charge.
local function spare(c, more, owed)
  local room = floor(c.limit * share / near)
  if c.kind ~= 'slots' then room = room - (c.held[id] or 0) end
  return max(0, min(more, room, floor((avail(c) - owed) / (2 * near))))
end

-- join adds a reservation to what may come back. It joins the newest entry that has
-- not lost anything yet; hence there are never more than two.
local function join(c, n)
  if c.kind ~= 'bucket' then return c.period or 0 end
  local e = c.entries[#c.entries]
  if n > 0 then
    if not e or e.cut == 1 then
      c.last = c.last + 1
      e = {i = c.last, r = 0, o = 0, cut = 0}
      table.insert(c.entries, e)
    end
    e.r, e.o = e.r + n, e.o + n
  end
  return c.last
end

-- settle ends reservations of n in entry i that used back less than that. The
-- caller has already put x of it to its lease.
local function settle(c, i, n, back, x)
  if c.period then
    if i == c.period or i == 0 then
      charge(c, x - back)
      move(c, x)
    end
    return
  end
  if i == 0 then -- was charged at once, and may come back whole
    c.level = c.level + back
  end
  for at, e in ipairs(c.entries) do
    if e.i == i then
      local b = min(back, e.r)
      if at == 1 and back >= e.r then
        c.frac, c.lost = c.frac - c.lost, 0
        if c.frac < 0 then c.level, c.frac = c.level - 1, c.frac + c.window end
      end
      c.level = c.level + b
      e.o = max(0, e.o - n)
      e.r = min(e.r - b, e.o)
      if e.r <= 0 then
        table.remove(c.entries, at)
        if at == 1 then c.lost = 0 end
      end
      break
    end
  end
  c.level = c.level - x
  move(c, x)
end

local function save(c)
  local a = {}
  local function put(name, v)
    a[#a + 1] = name
    a[#a + 1] = num(v)
  end
  local ttl = 2 * dead
  if c.kind == 'bucket' then
    trim(c)
    put('l', c.level)
    put('f', c.frac)
    put('x', c.lost)
    put('n', c.last)
    put('t', axis)
    put('m', c.limit)
    for k = 1, 2 do
      local e = c.entries[k]
      if e then
        put('i' .. k, e.i)
        put('r' .. k, e.r)
        put('o' .. k, e.o)
        put('c' .. k, e.cut)
      else
        redis.call('HDEL', c.key, 'i' .. k, 'r' .. k, 'o' .. k, 'c' .. k)
      end
    end
    ttl = ttl + 2 * c.window
    if c.limit > 0 and c.level < c.limit then ttl = ttl + (c.limit - c.level) / c.limit * c.window end
  elseif c.period then
    put('p', c.period)
    put('u', c.used)
    ttl = ttl + rest(c)
  end
  local h = c.held[id]
  if h and h > 0 then
    put('h:' .. id, h)
  elseif h then
    redis.call('HDEL', c.key, 'h:' .. id)
  end
  if #a > 0 then
    redis.call('HSET', c.key, unpack(a))
    redis.call('PEXPIRE', c.key, num(min(ttl, 3e9)))
  end
end

if op == 'reserve' then
  -- ARGV: the call's number, then kind, limit, window, need, owed, more of each counter.
  -- What the replica owes must be there too, but is for a report to charge.
  local seq = tonumber(ARGV[6])
  if seq <= tonumber(redis.call('HGET', KEYS[3], 'floor') or 0) then return 'late' end
  local cs, ok = {}, true
  for i = 4, #KEYS do
    local a = 7 + (i - 4) * 6
    local c = load(KEYS[i], ARGV[a], tonumber(ARGV[a + 1]), tonumber(ARGV[a + 2]))
    c.need, c.owed, c.more = tonumber(ARGV[a + 3]), tonumber(ARGV[a + 4]), tonumber(ARGV[a + 5])
    if c.need + c.owed > avail(c) then ok = false end
    cs[#cs + 1] = c
  end
  local out, done = {ok and 'ok' or 'no', num(near), num(turn)}, {}
  for _, c in ipairs(cs) do
    local g, w = 0, wait(c, c.need + c.owed)
    if ok then
      g = c.need + spare(c, c.more, c.need + c.owed)
      grant(c, g)
    end
    save(c)
    done[#done + 1] = num(g) .. ':' .. num(c.period or 0)
    for _, v in ipairs({g, avail(c), w, rest(c), c.period or 0}) do out[#out + 1] = num(v) end
  end
  if ok then -- so that a caller that never hears of it can have it undone
    redis.call('HSET', KEYS[3], 'd:' .. num(seq), table.concat(done, ','))
    redis.call('PEXPIRE', KEYS[3], num(2 * dead))
  end
  return table.concat(out, ' ')
end

-- op is flush. ARGV: another epoch, the flush's number, the number of the last
-- call whose outcome nobody waits for any more, a count and the numbers of the calls
-- that are over, a count and those to be undone (number, count and the positions of
-- their counters), then the counters' reports.
local at = 5
local function arg()
  at = at + 1
  return ARGV[at]
end
local function int() return tonumber(arg()) end

local another, seq, last = arg(), int(), int()
local record = redis.call('HMGET', KEYS[3], 'seq', 'answer')
local known = tonumber(record[1] or 0)
if seq == known then return record[2] end -- its answer was lost
if seq ~= known + 1 then -- the store has lost what it had answered
  redis.call('HSET', KEYS[1], 'epoch', another)
  return 'epoch'
end

local over = {}
for _ = 1, int() do over[#over + 1] = 'd:' .. arg() end
local undo = {}
for _ = 1, int() do
  local u = {call = arg(), counters = {}}
  for _ = 1, int() do u.counters[#u.counters + 1] = int() end
  undo[#undo + 1] = u
end

local fields = {'asOf', 'taken', 'spent', 'beyond', 'debt', 'back', 'more', 'force', 'seen', 'level', 'age'}
local cs = {}
for i = 4, #KEYS do
  local kind, limit, window = arg(), int(), int()
  local c, r = load(KEYS[i], kind, limit, window), {settles = {}}
  for _, name in ipairs(fields) do r[name] = int() end
  for _ = 1, int() do r.settles[#r.settles + 1] = {int(), int(), int(), int()} end
  c.report = r
  cs[#cs + 1] = c
end

for _, u in ipairs(undo) do
  local done = redis.call('HGET', KEYS[3], 'd:' .. u.call)
  local k = 0
  for g, p in string.gmatch(done or '', '(%d+):(%d+)') do
    k = k + 1
    local c = cs[u.counters[k]]
    if c and (not c.period or c.period == tonumber(p)) then grant(c, -min(tonumber(g), c.held[id] or 0)) end
  end
end

-- report puts to the counter what the replica has done since it last told.
local function report(c, r)
  if r.seen == 1 and c.kind == 'bucket' then
    c.level = min(c.level, (refill(r.level, 0, c.limit, c.window, r.age)))
  elseif r.seen == 1 and c.period == r.asOf then
    c.used = max(c.used, r.level, r.age + c.sum) -- age is what is recorded, without leases
  end
  if c.period and c.period ~= r.asOf then -- the lease ended with its period
    r.taken, r.spent, r.back, r.debt = 0, 0, 0, r.beyond
  end
  move(c, r.force)
  for _, s in ipairs(r.settles) do settle(c, s[1], s[2], s[3], s[4]) end
  -- What was used came off the lease. What was used beyond the lease is a debt.
  charge(c, r.debt)
  move(c, r.debt - r.taken - r.spent - r.beyond)
  r.entry = join(c, r.taken)
  grant(c, -min(r.back, c.held[id] or 0))
end

local out = {'ok', num(near), num(turn)}
for _, c in ipairs(cs) do
  report(c, c.report)
  if c.kind == 'bucket' then trim(c) end
  local g = spare(c, c.report.more, 0)
  grant(c, g)
  save(c)
  for _, v in ipairs({g, avail(c), c.report.entry, rest(c)}) do out[#out + 1] = num(v) end
end
local answer = table.concat(out, ' ')
redis.call('HSET', KEYS[3], 'seq', num(seq), 'floor', num(last), 'answer', answer)
if #over > 0 then redis.call('HDEL', KEYS[3], unpack(over)) end
redis.call('PEXPIRE', KEYS[3], num(2 * dead))
redis.call('HSET', KEYS[2], id, num(axis))
return answer
