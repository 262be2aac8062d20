#include "openssl.hpp"

#include <dlfcn.h>

#include <mutex>
#include <stdexcept>

#include "rdzv/tls.hpp"

namespace rdzv {

namespace {

openssl::Functions loaded;  // written once, before any thread of ours reads it
bool is_loaded = false;

bool take_from(const char* path) {
  void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);  // kept for as long as the process lives
  if (library == nullptr) {
    return false;
  }
  openssl::Functions found;
  bool complete = true;
#define RDZV_FIND(name, result, parameters)                                     \
  found.name = reinterpret_cast<decltype(found.name)>(dlsym(library, #name)); \
  complete = complete && found.name != nullptr;
  RDZV_OPENSSL_FUNCTIONS(RDZV_FIND)
#undef RDZV_FIND
  if (!complete) {
    dlclose(library);
    return false;
  }
  loaded = found;
  return is_loaded = true;
}

}  // namespace

const openssl::Functions& openssl::functions() { return loaded; }

void load_tls(const std::string& library) {
  static std::mutex once;
  const std::lock_guard lock(once);
  if (is_loaded || (!library.empty() && take_from(library.c_str()))) {
    return;
  }
  for (const char* name : {"libssl.so.3", "libssl.so.1.1", "libssl.so"}) {
    if (take_from(name)) {
      return;
    }
  }
  throw std::runtime_error("OpenSSL's libssl (libssl.so.3) is not on this machine");
}

}  // namespace rdzv
