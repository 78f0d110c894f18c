from load.run import main

main()
