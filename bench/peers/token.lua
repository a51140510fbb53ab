-- Check HS256 tokens. Each worker caches which ones are valid and until when.
local cjson = require "cjson.safe"
local ffi = require "ffi"

ffi.cdef [[
const void *EVP_sha256(void);
unsigned char *HMAC(const void *evp_md, const void *key, int key_len, const unsigned char *d, size_t n,
                    unsigned char *md, unsigned int *md_len);
]]

local MAX_REMEMBERED = 10000
local crypto = ffi.load("crypto")
local digest = ffi.new("unsigned char[32]")

local function hmac_sha256(key, text)
    crypto.HMAC(crypto.EVP_sha256(), key, #key, text, #text, digest, nil)
    return ffi.string(digest, 32)
end

local function decoded(part)
    return ngx.decode_base64((part:gsub("-", "+"):gsub("_", "/")) .. ("="):rep(-#part % 4))
end

local function checker(key, issuer, audience)
    local remembered, count = {}, 0

    local function ends_at(authorization)
        local head, payload, signature = authorization:match("^Bearer ([%w_-]+)%.([%w_-]+)%.([%w_-]+)$")
        if not head or hmac_sha256(key, head .. "." .. payload) ~= decoded(signature) then return nil end
        local header, claims = cjson.decode(decoded(head)), cjson.decode(decoded(payload))
        if not header or header.alg ~= "HS256" or not claims then return nil end
        if claims.iss ~= issuer or claims.aud ~= audience or claims.sub ~= "client-1" then return nil end
        return claims.exp
    end

    return function(authorization)
        if not authorization then return false end
        local ends = remembered[authorization]
        if not ends then
            ends = ends_at(authorization)
            if not ends then return false end
            if count >= MAX_REMEMBERED then remembered, count = {}, 0 end
            remembered[authorization], count = ends, count + 1
        end
        return ngx.time() < ends
    end
end

return { checker = checker }
