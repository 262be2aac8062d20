// The functions of OpenSSL that TLS needs. They are loaded when the first certificate is given, and never linked: the
// library that Python's own ssl has is the one that the system keeps up to date. See decision 0055.
#pragma once

#include <cstddef>
#include <cstdint>

// OpenSSL's own names for its types, so that a test can compare what follows with its headers.
struct ssl_st;
struct ssl_ctx_st;
struct ssl_method_st;
struct bio_st;
struct bio_method_st;
struct x509_st;
struct x509_store_st;
struct x509_store_ctx_st;
struct X509_VERIFY_PARAM_st;
struct evp_pkey_st;

namespace rdzv::openssl {

using PasswordCallback = int(char* into, int size, int writes, void* data);
using VerifyCallback = int (*)(int accepted, x509_store_ctx_st* context);

// Name, result, parameters; the same in every version from 1.1.1 on.
#define RDZV_OPENSSL_FUNCTIONS(FUNCTION)                                                                        \
  FUNCTION(TLS_method, const ssl_method_st*, (void))                                                            \
  FUNCTION(SSL_CTX_new, ssl_ctx_st*, (const ssl_method_st*))                                                    \
  FUNCTION(SSL_CTX_free, void, (ssl_ctx_st*))                                                                   \
  FUNCTION(SSL_CTX_ctrl, long, (ssl_ctx_st*, int, long, void*))                                                 \
  FUNCTION(SSL_CTX_set_num_tickets, int, (ssl_ctx_st*, std::size_t))                                            \
  FUNCTION(SSL_CTX_use_certificate, int, (ssl_ctx_st*, x509_st*))                                               \
  FUNCTION(SSL_CTX_use_PrivateKey, int, (ssl_ctx_st*, evp_pkey_st*))                                            \
  FUNCTION(SSL_CTX_check_private_key, int, (const ssl_ctx_st*))                                                 \
  FUNCTION(SSL_CTX_get_cert_store, x509_store_st*, (const ssl_ctx_st*))                                         \
  FUNCTION(SSL_CTX_set_default_verify_paths, int, (ssl_ctx_st*))                                                \
  FUNCTION(X509_STORE_add_cert, int, (x509_store_st*, x509_st*))                                                \
  FUNCTION(SSL_new, ssl_st*, (ssl_ctx_st*))                                                                     \
  FUNCTION(SSL_free, void, (ssl_st*))                                                                           \
  FUNCTION(SSL_ctrl, long, (ssl_st*, int, long, void*))                                                         \
  FUNCTION(SSL_set_bio, void, (ssl_st*, bio_st*, bio_st*))                                                      \
  FUNCTION(SSL_set_accept_state, void, (ssl_st*))                                                               \
  FUNCTION(SSL_set_connect_state, void, (ssl_st*))                                                              \
  FUNCTION(SSL_set_verify, void, (ssl_st*, int, VerifyCallback))                                                \
  FUNCTION(SSL_do_handshake, int, (ssl_st*))                                                                    \
  FUNCTION(SSL_read, int, (ssl_st*, void*, int))                                                                \
  FUNCTION(SSL_write, int, (ssl_st*, const void*, int))                                                         \
  FUNCTION(SSL_shutdown, int, (ssl_st*))                                                                        \
  FUNCTION(SSL_get_error, int, (const ssl_st*, int))                                                            \
  FUNCTION(SSL_get_verify_result, long, (const ssl_st*))                                                        \
  FUNCTION(SSL_get0_param, X509_VERIFY_PARAM_st*, (ssl_st*))                                                    \
  FUNCTION(X509_VERIFY_PARAM_set1_host, int, (X509_VERIFY_PARAM_st*, const char*, std::size_t))                 \
  FUNCTION(X509_VERIFY_PARAM_set1_ip_asc, int, (X509_VERIFY_PARAM_st*, const char*))                            \
  FUNCTION(X509_VERIFY_PARAM_set_hostflags, void, (X509_VERIFY_PARAM_st*, unsigned))                            \
  FUNCTION(X509_free, void, (x509_st*))                                                                         \
  FUNCTION(EVP_PKEY_free, void, (evp_pkey_st*))                                                                 \
  FUNCTION(PEM_read_bio_X509, x509_st*, (bio_st*, x509_st**, PasswordCallback*, void*))                         \
  FUNCTION(PEM_read_bio_PrivateKey, evp_pkey_st*, (bio_st*, evp_pkey_st**, PasswordCallback*, void*))           \
  FUNCTION(BIO_new_mem_buf, bio_st*, (const void*, int))                                                        \
  FUNCTION(BIO_new, bio_st*, (const bio_method_st*))                                                            \
  FUNCTION(BIO_free, int, (bio_st*))                                                                            \
  FUNCTION(BIO_set_data, void, (bio_st*, void*))                                                                \
  FUNCTION(BIO_get_data, void*, (bio_st*))                                                                      \
  FUNCTION(BIO_set_init, void, (bio_st*, int))                                                                  \
  FUNCTION(BIO_set_flags, void, (bio_st*, int))                                                                 \
  FUNCTION(BIO_clear_flags, void, (bio_st*, int))                                                               \
  FUNCTION(BIO_meth_new, bio_method_st*, (int, const char*))                                                    \
  FUNCTION(BIO_meth_set_write, int, (bio_method_st*, int (*)(bio_st*, const char*, int)))                       \
  FUNCTION(BIO_meth_set_read, int, (bio_method_st*, int (*)(bio_st*, char*, int)))                              \
  FUNCTION(BIO_meth_set_ctrl, int, (bio_method_st*, long (*)(bio_st*, int, long, void*)))                       \
  FUNCTION(ERR_clear_error, void, (void))                                                                       \
  FUNCTION(ERR_peek_error, unsigned long, (void))

struct Functions {
#define RDZV_DECLARE(name, result, parameters) result(*name) parameters = nullptr;
  RDZV_OPENSSL_FUNCTIONS(RDZV_DECLARE)
#undef RDZV_DECLARE
};

// Empty before load_tls(), which is called before any thread of ours reads them.
const Functions& functions();

// What OpenSSL's headers have as macros.
inline constexpr int kWantRead = 2, kWantWrite = 3, kSystemError = 5, kClosed = 6;
inline constexpr int kVerifyNone = 0, kVerifyPeer = 1, kVerifyRequired = 2;
inline constexpr int kSetMode = 33, kSetSessionCache = 44, kSetMostCertificates = 51;
inline constexpr int kSetHostName = 55, kAddToChain = 89, kSetLeastVersion = 123;
inline constexpr long kModePartialWrite = 1, kModeMovingBuffer = 2, kModeReleaseBuffers = 16;
inline constexpr long kTls13 = 0x304;
inline constexpr int kBioFlagsRetry = 0x08, kBioFlagsRead = 0x01, kBioFlagsWrite = 0x02, kBioFlush = 11;
inline constexpr int kBioTypeSourceSink = 0x400;
inline constexpr long kErrorReason = 0xFFF;
inline constexpr unsigned long kAlerts = 1000;  // the reasons from here on are what the other side has said
inline constexpr unsigned kNoPartialWildcards = 0x4;
// Reasons of errors, and of certificates that are not accepted.
inline constexpr unsigned long kNoCertificateCame = 199;
inline constexpr long kValid = 0, kNoIssuer = 2, kNotYetValid = 9, kExpired = 10, kSelfSigned = 18, kSelfSignedInChain = 19,
                      kNoIssuerHere = 20, kUnverifiedLeaf = 21, kOtherHost = 62, kOtherAddress = 64;

}  // namespace rdzv::openssl
