<powershell>
# Packer connects by WinRM with TLS. EC2 runs this at the first start of Packer's instance.
$ErrorActionPreference = 'Stop'
$certificate = New-SelfSignedCertificate -DnsName 'packer' -CertStoreLocation 'Cert:\LocalMachine\My'
New-Item -Path 'WSMan:\localhost\Listener' -Transport HTTPS -Address '*' -CertificateThumbPrint $certificate.Thumbprint -Force
New-NetFirewallRule -Name 'packer-winrm' -DisplayName 'WinRM for Packer' -Direction Inbound -Protocol TCP -LocalPort 5986 -Action Allow
</powershell>
