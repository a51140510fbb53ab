-- Script of wrk for every job: send the head in the given file with its variable parts filled in, and report
-- one line. "#user#" becomes one of 100,000 users, "#id#" a new id for each request.
local prefix, middle, suffix
local sequence, body = 0, nil

function init(args)
    local text = assert(io.open(args[1], "rb")):read("*a")
    local before, after = text:match("^(.-)#user#(.*)$")
    prefix = before
    middle, suffix = (after or text):match("^(.-)#id#(.*)$")
    body = middle == nil and text or nil
    math.randomseed(1)
end

function request()
    if body then return body end
    sequence = sequence + 1
    local id = string.format("%08x-2b1b-4c1e-8d5e-%012x", math.random(0, 0x7fffffff), sequence)
    if prefix then return prefix .. math.random(100000) .. middle .. id .. suffix end
    return middle .. id .. suffix
end

function done(summary)
    local errors = summary.errors
    io.write(string.format("RESULT %d %d %d %d\n", summary.requests, summary.duration, summary.bytes,
        errors.connect + errors.read + errors.write + errors.timeout + errors.status))
end
