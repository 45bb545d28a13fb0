"""What training costs on hardware that need not be here: time, memory, disk and money, before anything is trained."""
