// A certificate for node0 and 127.0.0.1 that has signed itself, until 2126, and its key: of the tests alone.
#pragma once

namespace rdzv::test {

inline constexpr char kCertificate[] = R"(-----BEGIN CERTIFICATE-----
MIIBrjCCAVWgAwIBAgIUJkm5m364agf8wcJPhHCy6d9PRuAwCgYIKoZIzj0EAwIw
IDEeMBwGA1UEAwwVdGVzdHMgb2YgcmR6di1wbHVnaW5zMCAXDTI2MTEyNDExMzMz
M1oYDzIxMjYxMDMxMTEzMzMzWjAgMR4wHAYDVQQDDBV0ZXN0cyBvZiByZHp2LXBs
dWdpbnMwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAATmRUc5BMPXli7oOWooiCRn
pYV2iR5/iipcyeRZNzA65+Bwx6JMTcqCdcsnG2mh3Z1ImZVqSuO4h4DOhkAI8f42
o2swaTAdBgNVHQ4EFgQUqS6XpEG8q/wmDRjcodFo2JT0czwwHwYDVR0jBBgwFoAU
qS6XpEG8q/wmDRjcodFo2JT0czwwFgYDVR0RBA8wDYIFbm9kZTCHBH8AAAEwDwYD
VR0TAQH/BAUwAwEB/zAKBggqhkjOPQQDAgNHADBEAiBYU+gBvyNucx2YvH3UUJrB
HLuk2pYjr0WlmsDBuzEDvwIgBPyyfFKgjeSMBinwKXXtDRYujAjx4NJ/DvlMVyLW
OYM=
-----END CERTIFICATE-----
)";

inline constexpr char kKey[] = R"(-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgV+fJ+z81w2xJw+Db
G1WmlCCTiQeTxdWO6x8+6rC7nEKhRANCAATmRUc5BMPXli7oOWooiCRnpYV2iR5/
iipcyeRZNzA65+Bwx6JMTcqCdcsnG2mh3Z1ImZVqSuO4h4DOhkAI8f42
-----END PRIVATE KEY-----
)";

}  // namespace rdzv::test
