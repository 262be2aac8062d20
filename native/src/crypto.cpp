#include "rdzv/crypto.hpp"

#include <dlfcn.h>
#include <sys/random.h>

#include <mutex>
#include <stdexcept>

namespace rdzv {

namespace {

// As openssl/hmac.h, evp.h and crypto.h declare them, from 1.1 on.
using Hmac = unsigned char* (*)(const void* type, const void* key, int key_size, const unsigned char* data,
                                std::size_t size, unsigned char* digest, unsigned* digest_size);
using Sha256 = const void* (*)();
using Compare = int (*)(const void* one, const void* other, std::size_t size);

struct Functions {
  Hmac hmac = nullptr;
  Sha256 sha256 = nullptr;
  Compare compare = nullptr;

  bool complete() const { return hmac != nullptr && sha256 != nullptr && compare != nullptr; }
};

Functions functions;  // written once, before any thread of ours reads it

template <class Function>
void find(void* library, const char* name, Function& found) {
  found = reinterpret_cast<Function>(dlsym(library, name));
}

bool take_from(const char* path) {
  void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);  // kept for as long as the process lives
  if (library == nullptr) {
    return false;
  }
  Functions found;
  find(library, "HMAC", found.hmac);
  find(library, "EVP_sha256", found.sha256);
  find(library, "CRYPTO_memcmp", found.compare);
  if (!found.complete()) {
    dlclose(library);
    return false;
  }
  functions = found;
  return true;
}

}  // namespace

void load_crypto(const std::string& library) {
  static std::mutex once;
  const std::lock_guard lock(once);
  if (functions.complete() || (!library.empty() && take_from(library.c_str()))) {
    return;
  }
  for (const char* name : {"libcrypto.so.3", "libcrypto.so.1.1", "libcrypto.so"}) {
    if (take_from(name)) {
      return;
    }
  }
  throw std::runtime_error("OpenSSL's libcrypto (libcrypto.so.3) is not on this machine");
}

std::optional<Digest> hmac_sha256(std::string_view key, std::string_view message) {
  Digest digest;
  unsigned size = 0;
  if (!functions.complete() ||
      functions.hmac(functions.sha256(), key.data(), static_cast<int>(key.size()),
                     reinterpret_cast<const unsigned char*>(message.data()), message.size(),
                     reinterpret_cast<unsigned char*>(digest.data()), &size) == nullptr ||
      size != digest.size()) {
    return std::nullopt;
  }
  return digest;
}

bool same_secret(std::string_view one, std::string_view other) {
  return functions.complete() && one.size() == other.size() &&
         functions.compare(one.data(), other.data(), one.size()) == 0;
}

std::optional<Digest> fresh_nonce() {
  Digest nonce;
  if (getrandom(nonce.data(), nonce.size(), 0) != static_cast<ssize_t>(nonce.size())) {
    return std::nullopt;
  }
  return nonce;
}

}  // namespace rdzv
