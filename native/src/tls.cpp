// OpenSSL's functions as they are found; certificates, from texts to what streams are made from; streams.
#include "rdzv/tls.hpp"

#include <dlfcn.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <new>
#include <stdexcept>

#include "openssl.hpp"
#include "rdzv/framing.hpp"
#include "rdzv/proof.hpp"

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

namespace {

using openssl::functions;

constexpr long kMostCertificateBytes = 32 * 1024;  // of what a peer shows

int no_password(char*, int, int, void*) { return 0; }  // else the terminal would be asked for one

template <class Kept>
struct Owned {
  Kept* it;
  void (*release)(Kept*);
  ~Owned() {
    if (it != nullptr) {
      release(it);
    }
  }
};

// Calls `take` with each certificate of a text in PEM; returns how many there were.
template <class Take>
int each_certificate(const std::string& text, Take take) {
  bio_st* const bytes = functions().BIO_new_mem_buf(text.data(), static_cast<int>(text.size()));
  int count = 0;
  while (x509_st* const found = functions().PEM_read_bio_X509(bytes, nullptr, &no_password, nullptr)) {
    const Owned<x509_st> owned{found, functions().X509_free};
    if (!take(found, count++)) {
      count = -1;
      break;
    }
  }
  functions().BIO_free(bytes);
  functions().ERR_clear_error();  // that there were no more
  return count;
}

void trust(ssl_ctx_st* context, const std::string& authorities) {
  if (authorities.empty()) {
    functions().SSL_CTX_set_default_verify_paths(context);
    return;
  }
  x509_store_st* const store = functions().SSL_CTX_get_cert_store(context);
  const int count = each_certificate(
      authorities, [&](x509_st* each, int) { return functions().X509_STORE_add_cert(store, each) == 1; });
  if (count <= 0) {
    throw std::invalid_argument("cacert holds no certificate");
  }
}

void identify(ssl_ctx_st* context, const Certificates& certificates) {
  const int count = each_certificate(certificates.chain, [&](x509_st* each, int number) {
    // the first is this side's own; of the others the context takes another reference
    return number == 0 ? functions().SSL_CTX_use_certificate(context, each) == 1
                       : functions().SSL_CTX_ctrl(context, openssl::kAddToChain, 1, each) == 1;
  });
  if (count <= 0) {
    throw std::invalid_argument("cert holds no certificate");
  }
  bio_st* const bytes =
      functions().BIO_new_mem_buf(certificates.key.data(), static_cast<int>(certificates.key.size()));
  const Owned<evp_pkey_st> key{functions().PEM_read_bio_PrivateKey(bytes, nullptr, &no_password, nullptr),
                               functions().EVP_PKEY_free};
  functions().BIO_free(bytes);
  if (key.it == nullptr) {
    throw std::invalid_argument("key holds no private key without a password");
  }
  if (functions().SSL_CTX_use_PrivateKey(context, key.it) != 1 || functions().SSL_CTX_check_private_key(context) != 1) {
    throw std::invalid_argument("key is not that of cert");
  }
}

using openssl::functions;

constexpr std::size_t kRecord = 16 * 1024;  // of what is said, in one record
constexpr std::size_t kRecordBytes = kRecord + 512;  // of one record, on the wire
constexpr int kHearOut = 4;  // reads of somebody who is refused
// Alerts, as RFC 8446 numbers them.
constexpr unsigned long kBadCertificate = 42, kUnsupportedCertificate = 43, kRevoked = 44, kAlertExpired = 45,
                        kUnknownCertificate = 46, kUnknownAuthority = 48, kAccessDenied = 49, kDecryptError = 51,
                        kVersion = 70, kCertificateRequired = 116;

long control(bio_st*, int command, long, void*) { return command == openssl::kBioFlush ? 1 : 0; }

const bio_method_st* method(int (*read)(bio_st*, char*, int), int (*write)(bio_st*, const char*, int)) {
  static bio_method_st* const made = [&] {
    bio_method_st* const fresh = functions().BIO_meth_new(openssl::kBioTypeSourceSink | 0x7f, "rdzv");
    functions().BIO_meth_set_read(fresh, read);
    functions().BIO_meth_set_write(fresh, write);
    functions().BIO_meth_set_ctrl(fresh, &control);
    return fresh;
  }();
  return made;
}

bool is_about_a_certificate(unsigned long alert) {
  return (alert >= kBadCertificate && alert <= kUnknownCertificate) || alert == kUnknownAuthority ||
         alert == kAccessDenied || alert == kDecryptError || alert == kCertificateRequired;
}

Refusal refusal_of(long verdict) {
  switch (verdict) {
    case openssl::kExpired:
      return Refusal::kCertificateExpired;
    case openssl::kNotYetValid:
      return Refusal::kCertificateEarly;
    case openssl::kNoIssuer:
    case openssl::kSelfSigned:
    case openssl::kSelfSignedInChain:
    case openssl::kNoIssuerHere:
    case openssl::kUnverifiedLeaf:
      return Refusal::kOtherAuthority;
    default:
      return Refusal::kBadCertificate;
  }
}

}  // namespace

TlsContext::TlsContext(const Certificates& certificates)
    : context_(nullptr), asks_clients_(!certificates.authorities.empty()) {
  if (functions().SSL_CTX_new == nullptr) {
    throw std::invalid_argument("OpenSSL was not loaded");
  }
  context_ = functions().SSL_CTX_new(functions().TLS_method());
  if (context_ == nullptr) {
    throw std::bad_alloc();
  }
  try {
    functions().SSL_CTX_ctrl(context_, openssl::kSetLeastVersion, openssl::kTls13, nullptr);
    functions().SSL_CTX_ctrl(
        context_, openssl::kSetMode,
        openssl::kModePartialWrite | openssl::kModeMovingBuffer | openssl::kModeReleaseBuffers, nullptr);
    functions().SSL_CTX_ctrl(context_, openssl::kSetMostCertificates, kMostCertificateBytes, nullptr);
    functions().SSL_CTX_ctrl(context_, openssl::kSetSessionCache, 0, nullptr);
    functions().SSL_CTX_set_num_tickets(context_, 0);  // a connection lasts as long as its node: none comes back
    trust(context_, certificates.authorities);
    if (!certificates.chain.empty()) {
      identify(context_, certificates);
    }
    functions().ERR_clear_error();
  } catch (...) {
    functions().ERR_clear_error();
    functions().SSL_CTX_free(context_);
    throw;
  }
}

TlsContext::~TlsContext() { functions().SSL_CTX_free(context_); }

// One socket's bytes under TLS: handed to OpenSSL as they come, and what is wrong with a peer, in our words.

TlsStream::TlsStream(const TlsContext& context, int fd, bool accepts)
    : stream_(functions().SSL_new(context.get())), fd_(fd), accepts_(accepts) {
  bio_st* const bio = stream_ == nullptr ? nullptr : functions().BIO_new(method(&TlsStream::give, &TlsStream::send_on));
  if (bio == nullptr) {
    functions().SSL_free(stream_);
    throw std::bad_alloc();
  }
  functions().BIO_set_data(bio, this);
  functions().BIO_set_init(bio, 1);
  functions().SSL_set_bio(stream_, bio, bio);
}

TlsStream::~TlsStream() { functions().SSL_free(stream_); }

std::unique_ptr<TlsStream> TlsStream::to_client(const TlsContext& context, int fd) {
  std::unique_ptr<TlsStream> made(new TlsStream(context, fd, true));
  functions().SSL_set_verify(
      made->stream_, context.asks_clients() ? openssl::kVerifyPeer | openssl::kVerifyRequired : openssl::kVerifyNone,
      nullptr);
  functions().SSL_set_accept_state(made->stream_);
  return made;
}

std::unique_ptr<TlsStream> TlsStream::to_server(const TlsContext& context, int fd, const std::string& host) {
  std::unique_ptr<TlsStream> made(new TlsStream(context, fd, false));
  X509_VERIFY_PARAM_st* const expected = functions().SSL_get0_param(made->stream_);
  if (functions().X509_VERIFY_PARAM_set1_ip_asc(expected, host.c_str()) != 1) {
    functions().ERR_clear_error();
    functions().X509_VERIFY_PARAM_set_hostflags(expected, openssl::kNoPartialWildcards);
    if (functions().X509_VERIFY_PARAM_set1_host(expected, host.data(), host.size()) != 1) {
      throw std::bad_alloc();
    }
    functions().SSL_ctrl(made->stream_, openssl::kSetHostName, 0, const_cast<char*>(host.c_str()));
  }
  functions().SSL_set_verify(made->stream_, openssl::kVerifyPeer, nullptr);
  functions().SSL_set_connect_state(made->stream_);
  return made;
}

int TlsStream::give(bio_st* bio, char* into, int size) {
  auto& stream = *static_cast<TlsStream*>(functions().BIO_get_data(bio));
  functions().BIO_clear_flags(bio, openssl::kBioFlagsRetry | openssl::kBioFlagsRead | openssl::kBioFlagsWrite);
  if (stream.incoming_.empty()) {
    functions().BIO_set_flags(bio, openssl::kBioFlagsRetry | openssl::kBioFlagsRead);
    return -1;
  }
  const std::size_t given = std::min(static_cast<std::size_t>(size), stream.incoming_.size());
  std::memcpy(into, stream.incoming_.data(), given);
  stream.incoming_.remove_prefix(given);
  return static_cast<int>(given);
}

int TlsStream::send_on(bio_st* bio, const char* bytes, int size) {
  auto& stream = *static_cast<TlsStream*>(functions().BIO_get_data(bio));
  functions().BIO_clear_flags(bio, openssl::kBioFlagsRetry | openssl::kBioFlagsRead | openssl::kBioFlagsWrite);
  const ssize_t sent = send(stream.fd_, bytes, static_cast<std::size_t>(size), MSG_NOSIGNAL);
  if (sent < 0 && (errno == EAGAIN || errno == EINTR)) {
    functions().BIO_set_flags(bio, openssl::kBioFlagsRetry | openssl::kBioFlagsWrite);
  }
  return static_cast<int>(sent);
}

bool TlsStream::begin() {
  functions().ERR_clear_error();
  const int result = functions().SSL_do_handshake(stream_);
  return result == 1 || is_for_later(result);
}

ssize_t TlsStream::read(char* into, std::size_t size) {
  if (ended_) {
    errno = EPIPE;
    return -1;
  }
  // One for all streams of a thread: what is in it has gone into OpenSSL when this returns.
  thread_local std::string taken(kLeastRead, '\0');
  std::string waited;
  if (wants_room_) {
    wants_room_ = false;
    waited.swap(left_);
    incoming_ = waited;
  } else {
    // a record may have begun before
    const ssize_t got = recv(fd_, taken.data(), std::min(taken.size(), size - kRecordBytes), 0);
    if (got <= 0) {
      return got;
    }
    incoming_ = {taken.data(), static_cast<std::size_t>(got)};
    if (accepts_ && !begun_ && taken[0] != kTlsRecord) {
      refuse_plain(taken[0]);
      errno = EPROTO;
      return -1;
    }
    begun_ = true;
  }
  std::size_t said = 0;
  while (true) {
    functions().ERR_clear_error();
    if (!secured_) {
      const int result = functions().SSL_do_handshake(stream_);
      if (result == 1) {
        secured_ = true;
        continue;
      }
      if (!is_for_later(result)) {
        errno = EPROTO;
        return -1;
      }
      break;
    }
    const int result = functions().SSL_read(stream_, into + said, static_cast<int>(size - said));
    if (result > 0) {
      said += static_cast<std::size_t>(result);
      continue;
    }
    if (!is_for_later(result)) {
      if (said > 0) {
        break;  // the socket tells of the end again, and of a broken record there is nothing behind it that counts
      }
      if (refusal_ == Refusal::kNone) {
        return 0;
      }
      errno = EPROTO;
      return -1;
    }
    break;
  }
  if (!incoming_.empty()) {
    left_ = incoming_;
    incoming_ = {};
  }
  if (said == 0) {
    errno = EAGAIN;
    return -1;
  }
  return static_cast<ssize_t>(said);
}

ssize_t TlsStream::write(const iovec* parts, std::size_t count) {
  std::array<char, kRecord> together;
  std::size_t part = 0, at = 0, written = 0;
  while (part < count && !ended_) {
    const char* bytes = static_cast<const char*>(parts[part].iov_base) + at;
    std::size_t size = std::min(parts[part].iov_len - at, kRecord);
    if (size < kRecord && part + 1 < count) {  // small ones share a record
      std::size_t next = part, from = at;
      size = 0;
      while (next < count && size < kRecord) {
        const std::size_t more = std::min(parts[next].iov_len - from, kRecord - size);
        std::memcpy(together.data() + size, static_cast<const char*>(parts[next].iov_base) + from, more);
        size += more;
        from = 0;
        ++next;
      }
      bytes = together.data();
    }
    functions().ERR_clear_error();
    const int result = functions().SSL_write(stream_, bytes, static_cast<int>(size));
    if (result <= 0) {
      const bool read_wants_room = wants_room_;
      if (!is_for_later(result)) {
        break;
      }
      wants_room_ = read_wants_room;  // who writes waits for it anyway
      errno = EAGAIN;
      return written > 0 ? static_cast<ssize_t>(written) : -1;
    }
    written += static_cast<std::size_t>(result);
    for (auto left = static_cast<std::size_t>(result); left > 0 && part < count;) {
      const std::size_t here = std::min(left, parts[part].iov_len - at);
      left -= here;
      at += here;
      if (at == parts[part].iov_len) {
        ++part;
        at = 0;
      }
    }
  }
  if (written > 0 || !ended_) {
    return static_cast<ssize_t>(written);
  }
  errno = EPIPE;
  return -1;
}

bool TlsStream::is_for_later(int result) {
  switch (functions().SSL_get_error(stream_, result)) {
    case openssl::kWantRead:
      return true;
    case openssl::kWantWrite:
      wants_room_ = true;
      return true;
    case openssl::kClosed:
    case openssl::kSystemError:
      break;
    default:
      judge();
  }
  ended_ = true;
  return false;
}

void TlsStream::judge() {
  const unsigned long reason = functions().ERR_peek_error() & openssl::kErrorReason;
  verdict_ = functions().SSL_get_verify_result(stream_);
  if (reason > openssl::kAlerts && reason < openssl::kAlerts + 256) {
    alert_ = reason - openssl::kAlerts;
    refusal_ = is_about_a_certificate(alert_) ? Refusal::kRefusedCertificate : Refusal::kBadTls;
  } else if (verdict_ != openssl::kValid) {
    refusal_ = refusal_of(verdict_);
  } else {
    refusal_ = reason == openssl::kNoCertificateCame ? Refusal::kNoCertificate : Refusal::kBadTls;
  }
  functions().ERR_clear_error();
}

void TlsStream::refuse_plain(char first) {
  ended_ = true;
  refusal_ = Refusal::kNoTls;
  const auto opcode = static_cast<unsigned char>(first);
  if (opcode == kFramingOpcode || opcode == kProofOpcode) {  // a node of ours: it can be told
    const std::string said = verdict_bytes(Verdict::kTlsNeeded);
    send(fd_, said.data(), said.size(), MSG_NOSIGNAL);
  }
}

std::string TlsStream::trouble() const {
  if (alert_ == 0 && refusal_ != Refusal::kNone && verdict_ != openssl::kValid) {
    switch (verdict_) {
      case openssl::kExpired:
        return "its certificate has expired: renew it there, or set this machine's clock";
      case openssl::kNotYetValid:
        return "its certificate is not valid yet: one of both machines' clocks is wrong";
      case openssl::kOtherHost:
      case openssl::kOtherAddress:
        return "its certificate is for another host: it needs this name or address as subjectAltName";
      default:
        return refusal_ == Refusal::kOtherAuthority
                   ? "its certificate is of an authority that this node's cacert does not have"
                   : "its certificate is not accepted";
    }
  }
  switch (alert_) {
    case 0:
      return refusal_ == Refusal::kBadTls ? "what it says is no TLS 1.3, or was changed on the way" : "";
    case kCertificateRequired:
      return "it needs a certificate of this node: give it cert and key";
    case kAlertExpired:
      return "it says that this node's certificate has expired: renew it here, or set that machine's clock";
    case kUnknownAuthority:
      return "it says that this node's certificate is of an authority that its cacert does not have";
    case kVersion:
      return "it speaks no TLS 1.3";
    default:
      return is_about_a_certificate(alert_) ? "it does not accept this node's certificate; its log says why"
                                            : "it has ended TLS (alert " + std::to_string(alert_) + ")";
  }
}

void TlsStream::close() {
  if (secured_ && !ended_) {
    functions().ERR_clear_error();
    functions().SSL_shutdown(stream_);
    functions().ERR_clear_error();
  }
  if (refusal_ != Refusal::kNone) {  // a socket that is closed with bytes unread takes back what was said
    shutdown(fd_, SHUT_WR);
    std::array<char, 4096> unread;
    for (int i = 0; i < kHearOut && recv(fd_, unread.data(), unread.size(), MSG_DONTWAIT) > 0; ++i) {
    }
  }
  ended_ = true;
}

}  // namespace rdzv
