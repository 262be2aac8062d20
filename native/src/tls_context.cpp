// Certificates, from texts to what streams are made from.
#include <stdexcept>

#include "openssl.hpp"
#include "rdzv/tls.hpp"

namespace rdzv {

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

}  // namespace rdzv
