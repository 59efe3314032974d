# Installs the GRID driver for Windows Server 2022 from AWS's bucket, which is in us-east-1.
$ErrorActionPreference = 'Stop'
$bucket = @{ BucketName = 'ec2-windows-nvidia-drivers'; Region = 'us-east-1' }
$found = @(Get-S3Object @bucket -KeyPrefix "$env:DRIVER/" | Where-Object { $_.Key -like '*server2022*.exe' })
if ($found.Count -ne 1) {
    throw "$($found.Count) drivers for Windows Server 2022 in $env:DRIVER, want one: $($found.Key)"
}
$installer = Join-Path $env:TEMP 'driver.exe'
Write-Host "Installing $($found[0].Key)"
Copy-S3Object @bucket -Key $found[0].Key -LocalFile $installer | Out-Null
$process = Start-Process -FilePath $installer -ArgumentList '-s', '-noreboot' -Wait -PassThru
# 1: the driver needs a restart, which Packer does next.
if ($process.ExitCode -notin 0, 1) {
    throw "The driver's installer failed with exit code $($process.ExitCode)."
}
Remove-Item -Path $installer
